import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it, test } from 'vitest';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import type { Attachment, NamespaceAttachment, WantedAttachments } from './attachments.ts';
import { peerMatches, rulesetScript } from './ruleset.ts';

const GUEST = '10.97.0.20';
const NEIGHBOUR = '10.97.0.21';
const PROGRAM = '10.97.1.20';
const WANTED: WantedAttachments = {
  machines: [
    { uid: 'desk', macAddress: '02:00:00:00:00:01', address: GUEST, tap: 'bt-desk', ports: [] },
    { uid: 'shelf', macAddress: '02:00:00:00:00:02', address: NEIGHBOUR, tap: 'bt-shelf', ports: [] },
  ],
  namespaces: [{ uid: 'phone', address: PROGRAM, device: 'bn-phone', exposedPort: 5555, ports: [] }],
};

/** Returns the rules of the chain with this name. */
function chain(name: string): string[] {
  const [, rules = ''] = rulesetScript(natLayout({}), WANTED, true).split(`chain ${name} {`);
  return rules
    .slice(0, rules.indexOf('}\n'))
    .split('\n')
    .map((rule) => rule.trim());
}

/** dnsmasq has a limited number of places for queries that wait, and one guest could take all of them. */
describe('DNS queries', () => {
  it.each([
    ['a guest', GUEST, 'guests_dns', 'guests_limits'],
    ['another guest', NEIGHBOUR, 'guests_dns', 'guests_limits'],
    ['a program in a network namespace', PROGRAM, 'programs_dns', 'limits'],
  ])('of %s are limited, also those of one connection', (_, address, name, next) => {
    const rules = chain(name);
    expect(rules).toContain(
      `ip saddr ${address} udp dport 53 limit rate over 200/second burst 500 packets drop`,
    );
    expect(rules).toContain(`ip saddr ${address} tcp dport 53 ct state new ct count over 4 drop`);
    expect(rules).toContain(`goto ${next}`);
    const script = rulesetScript(natLayout({}), WANTED, true);
    expect(script).toContain(`th dport 53 goto ${name}\n`);
  });
});

/** Servers outside otherwise send segments that are too large for a VPN or the network of a cloud, and many routers drop them without a message. */
test('TCP segments of guests and programs fit the smallest device on this host', () => {
  const script = rulesetScript(natLayout({}), WANTED, true);
  const [, guests = '', _bridge, programs = ''] = script.split(
    'chain forward {\n    type filter hook forward',
  );
  for (const [rules, device, next] of [
    [guests, 'berth0', 'iifname "berth0" jump from_guests'],
    [programs, `${natLayout({}).namespaces.prefix}*`, 'jump from_namespaces'],
  ] as const) {
    for (const side of ['iifname', 'oifname']) {
      const rule = `${side} "${device}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu\n`;
      expect(rules).toContain(rule);
      expect(rules.indexOf(rule)).toBeLessThan(rules.indexOf(next));
    }
  }
});

test('DHCP messages of each guest are limited, because all guests share one queue of the DHCP server', () => {
  const accepted = chain('dhcp').filter((rule) => rule.startsWith('iifname "bt-'));
  const limit = 'limit rate 10/second burst 50 packets accept';
  expect(accepted).toEqual([
    expect.stringMatching(`^iifname "bt-desk" .* 0x020000000001 ${limit}$`),
    expect.stringMatching(`^iifname "bt-shelf" .* 0x020000000002 ${limit}$`),
  ]);
});

test('guests reach no other service of the host, also if other rules translate its address', () => {
  const rules = chain('guests_reach');
  const drop = rules.indexOf('fib daddr type local drop');
  expect(drop).toBeGreaterThan(0);
  expect(rules.slice(0, drop).filter((rule) => rule !== '')).toEqual([
    'ct direction reply ct state established,related accept',
    'ip daddr 10.97.0.1 meta l4proto { tcp, udp } th dport { 53, 67 } accept',
    'ip daddr 10.97.0.1 meta l4proto icmp accept',
    'ip daddr 169.254.169.254 tcp dport 80 accept',
  ]);
});

describe('hypervisors', () => {
  test('have no network of the host, except to answer clients', () => {
    const script = rulesetScript(natLayout({ users: ['7', '10-19'] }), WANTED, true);
    const [, rules = ''] = script.split('chain hypervisors {');
    expect(
      rules
        .slice(0, rules.indexOf('}\n'))
        .trim()
        .split(/\s*\n\s*/),
    ).toEqual([
      'type filter hook output priority mangle; policy accept;',
      'ct direction reply ct state established,related accept',
      'meta skuid { 7, 10-19 } drop',
    ]);
  });

  test('without users of their own are not told apart', () => {
    expect(rulesetScript(natLayout({ users: [] }), WANTED, true)).not.toContain('chain hypervisors');
  });
});

describe('peers of programs', () => {
  const PROGRAM: NamespaceAttachment = {
    uid: 'emulator',
    address: '198.18.213.20',
    device: 'bn1',
    exposedPort: 5555,
    peer: 'desk',
    ports: [],
  };

  function machine(uid: string, address: string): Attachment {
    return { uid, address, macAddress: '52:54:00:00:00:01', tap: `bt-${uid}`, ports: [] };
  }

  test('a peer is let in by its present address alone, and a peer that is away by none', () => {
    const first = [machine('other', '10.213.0.20'), machine('desk', '10.213.0.21')];
    const matches = (machines: Attachment[]): string[] => peerMatches({ machines, namespaces: [PROGRAM] });
    expect(matches(first)).toEqual(['ip saddr 10.213.0.21 ip daddr 198.18.213.20 tcp dport 5555']);
    const away = [machine('other', '10.213.0.20'), machine('heir', '10.213.0.21')];
    expect(matches(away)).toEqual([]);
    const back = [machine('heir', '10.213.0.21'), machine('desk', '10.213.0.30')];
    expect(matches(back)).toEqual(['ip saddr 10.213.0.30 ip daddr 198.18.213.20 tcp dport 5555']);
  });

  test('a program without a peer is reached by no machine', () => {
    const { peer: _none, ...alone } = PROGRAM;
    expect(peerMatches({ machines: [machine('desk', '10.213.0.21')], namespaces: [alone] })).toEqual([]);
  });
});

/** nft 1.1 stores a single type of a set in a form that makes nft 1.0 of the same host crash, at each command. Both read fields. */
test('no set of the agent has a single type: the nft of the host can be older than that of the agent', () => {
  const folder = join(import.meta.dirname, '..');
  const sources = globSync('**/*.ts', { cwd: folder }).filter((file) => !file.endsWith('.test.ts'));
  const text = sources.map((file) => readFileSync(join(folder, file), 'utf8')).join('\n');
  expect(text.match(/^ *(?:return `)?set \S+ \{\s*typeof /gm)?.length).toBe(5);
  expect(text.match(/\bset \S+ \{\s*type [^.\n;]*$/gm)).toBeNull();
  expect(text.match(/\bset \S+ \{\s*type [^.\n]*;/g)).toBeNull();
});
