import { expect, test } from 'vitest';
import { chainsStopping, foreignTables, PublishedPorts, type RuleSubject } from './foreignrules.ts';
import type { RulesetEntry } from '../nftables.ts';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import type { Link } from './devices.ts';

const MACHINE: RuleSubject = {
  address: '10.213.3.7',
  macAddress: '52:54:00:00:00:01',
  port: 'bt0001',
  bridge: 'berth0',
};

const field = (protocol: string, name: string) => ({ payload: { protocol, field: name } });
const meta = (key: string) => ({ meta: { key } });
const match = (left: unknown, right: unknown, op = '==') => ({ match: { op, left, right } });
const saddr = (right: unknown, op = '==') => match(field('ip', 'saddr'), right, op);
const DROP = { drop: null };
const ACCEPT = { accept: null };

/** Returns a ruleset in the form of nft: one foreign table with one base chain, and the entries of `more`. */
function ruleset(
  rules: object[][],
  o: { hook?: string; family?: string; policy?: string; more?: RulesetEntry[] } = {},
) {
  const { hook = 'forward', family = 'inet', policy = 'accept', more = [] } = o;
  const place = { family, table: 'other' };
  return [
    { metainfo: { version: '1.0.6' } },
    { table: { family, name: 'other' } },
    { chain: { ...place, name: 'theirs', type: 'filter', hook, prio: 0, policy } },
    ...more,
    ...rules.map((expr) => ({ rule: { ...place, chain: 'theirs', expr } })),
  ];
}

function found(entries: RulesetEntry[]): string[] {
  return chainsStopping(foreignTables(entries, ['inet berth', 'bridge berth']), MACHINE);
}

const STOPPED = ['table inet other, chain theirs'];

test.each([
  ['its address', [saddr('10.213.3.7'), DROP]],
  ['a subnet with it', [saddr({ prefix: { addr: '10.213.0.0', len: 20 } }), DROP]],
  ['a range with it', [saddr({ range: ['10.213.3.0', '10.213.3.9'] }), DROP]],
  [
    'a set with it',
    [saddr({ set: ['10.0.0.1', '10.213.3.7'] }), { counter: { packets: 1, bytes: 2 } }, DROP],
  ],
  ['everything but another', [saddr('10.0.0.1', '!='), DROP]],
  ['its bridge', [match(meta('oifname'), 'berth0'), { reject: { type: 'icmp' } }]],
  ['names like its bridge', [match(meta('iifname'), 'berth*'), DROP]],
  ['every packet', [DROP]],
])('a rule that drops %s stops the machine', (_what, rule) => {
  expect(found(ruleset([rule]))).toEqual(STOPPED);
});

test.each([
  ['another address', [saddr('10.213.3.8'), DROP]],
  ['everything but it', [match(field('ip', 'daddr'), '10.213.3.7'), ACCEPT]],
  ['a port of it', [saddr('10.213.3.7'), match(field('tcp', 'dport'), 25), DROP]],
  ['one destination', [saddr('10.213.3.7'), match(field('ip', 'daddr'), '192.0.2.9'), DROP]],
  ['a state', [match({ ct: { key: 'state' } }, 'invalid', 'in'), DROP]],
  ['what an extension of iptables says', [{ xt: { type: 'match', name: 'physdev' } }, DROP]],
  ['IPv6', [match(meta('nfproto'), 'ipv6'), DROP]],
])('a rule about %s does not', (_what, rule) => {
  expect(found(ruleset([rule]))).toEqual([]);
});

test('a policy of drop stops it, unless it is accepted before', () => {
  expect(found(ruleset([], { policy: 'drop' }))).toEqual(STOPPED);
  const both = [
    [saddr('10.213.3.7'), ACCEPT],
    [match(field('ip', 'daddr'), '10.213.3.7'), ACCEPT],
  ];
  expect(found(ruleset(both, { policy: 'drop' }))).toEqual([]);
});

test('an accepted packet is not stopped by a later rule of the same chain', () => {
  const accepted = [
    [match(meta('iifname'), 'berth0'), ACCEPT],
    [saddr('10.213.3.7'), DROP],
  ];
  expect(found(ruleset(accepted))).toEqual([]);
});

test('named sets and chains jumped to are followed', () => {
  const place = { family: 'inet', table: 'other' };
  const more = [
    { set: { ...place, name: 'bad', type: 'ipv4_addr', elem: ['10.213.3.7'] } },
    { chain: { ...place, name: 'more' } },
    { rule: { ...place, chain: 'more', expr: [saddr('@bad'), DROP] } },
  ];
  expect(found(ruleset([[{ jump: { target: 'more' } }]], { more }))).toEqual(STOPPED);
  expect(found(ruleset([[saddr('10.0.0.1'), { jump: { target: 'more' } }]], { more }))).toEqual([]);
  expect(found(ruleset([[{ return: null }], [{ goto: { target: 'more' } }]], { more }))).toEqual([]);
});

test('chains that jump to each other end', () => {
  const place = { family: 'inet', table: 'other' };
  const more = [
    { chain: { ...place, name: 'more' } },
    { rule: { ...place, chain: 'more', expr: [{ jump: { target: 'theirs' } }] } },
  ];
  expect(found(ruleset([[{ jump: { target: 'more' } }]], { more }))).toEqual([]);
  expect(found(ruleset([[{ jump: { target: 'more' } }], [DROP]], { more }))).toEqual(STOPPED);
});

test('what the host itself sends and receives is no matter of the guests', () => {
  expect(found(ruleset([[DROP]], { hook: 'input' }))).toEqual([]);
  expect(found(ruleset([[DROP]], { hook: 'output', policy: 'drop' }))).toEqual([]);
});

test('in the bridge family a machine is known by its port and card', () => {
  const rule = [match(meta('iifname'), 'bt0001'), DROP];
  expect(found(ruleset([rule], { family: 'bridge', hook: 'prerouting' }))).toEqual([
    'table bridge other, chain theirs',
  ]);
  const card = [match(field('ether', 'daddr'), '52:54:00:00:00:01'), DROP];
  expect(found(ruleset([card], { family: 'bridge', hook: 'output' }))).toHaveLength(1);
});

test('our own tables are not looked at', () => {
  const own = ruleset([[DROP]]).map(
    (entry) => JSON.parse(JSON.stringify(entry).replaceAll('other', 'berth')) as RulesetEntry,
  );
  expect(found(own)).toEqual([]);
});

const HOST = '192.0.2.1';
const SERVICE = '10.96.0.7';
const link = (kind: string, address: string) => ({ kind, addresses: [address] }) as unknown as Link;
const LINKS = new Map([
  ['lo', link('', '127.0.0.1/8')],
  ['eth0', link('', `${HOST}/24`)],
  ['kube-ipvs0', link('dummy', `${SERVICE}/32`)],
]);
const PORT = { protocol: 'TCP', hostPort: 8080, guestPort: 80 } as const;

const dport = (right: unknown, protocol = 'tcp') => match(field(protocol, 'dport'), right);
const hidden = (name: string) => ({ xt: { type: 'match', name } });
const DNAT = { dnat: { addr: '10.1.1.1', port: 80 } };
const IPTABLES_DNAT = { xt: { type: 'target', name: 'DNAT' } };
const toLocal = match({ fib: { result: 'type', flags: ['daddr'] } }, 'local');
const keyed = { concat: [{ meta: { key: 'l4proto' } }, field('th', 'dport')] };
const jump = (target: string) => ({ jump: { target } });

/** Returns the message about port 8080/TCP of a host with these chains of rules. The first chain is at the hook prerouting. */
function reported(
  chains: Record<string, object[][]>,
  more: RulesetEntry[] = [],
  hostAddress?: string,
): string | undefined {
  const place = { family: 'ip', table: 'other' };
  const ruleset: RulesetEntry[] = [{ table: { family: 'ip', name: 'other' } }, ...more];
  for (const [index, name] of Object.keys(chains).entries()) {
    ruleset.push({ chain: { ...place, name, ...(index === 0 ? { hook: 'prerouting' } : {}) } });
  }
  for (const [chain, rules] of Object.entries(chains)) {
    ruleset.push(...rules.map((expr) => ({ rule: { ...place, chain, expr } })));
  }
  const ports = new PublishedPorts(natLayout(hostAddress === undefined ? {} : { hostAddress }), [
    'inet berth',
  ]);
  ports.notice({ ruleset, links: LINKS });
  return ports.faultOf(PORT);
}

const map = (name: string, elem: unknown[]): RulesetEntry => ({
  map: { family: 'ip', table: 'other', name, elem },
});

test.each([
  ['nftables', { pre: [[dport(8080), DNAT]] }, 'pre'],
  ['nftables, a set of ports', { pre: [[dport({ set: [{ range: [8000, 8100] }, 9000] }), DNAT]] }, 'pre'],
  ['nftables, a redirect', { pre: [[dport(8080, 'th'), { redirect: { port: 99 } }]] }, 'pre'],
  ['a rule for the whole address', { pre: [[match(field('ip', 'daddr'), HOST), DNAT]] }, 'pre'],
  [
    'Docker',
    {
      pre: [[hidden('addrtype'), jump('DOCKER')]],
      DOCKER: [
        [match({ meta: { key: 'iifname' } }, 'docker0'), { return: null }],
        [match({ meta: { key: 'iifname' } }, 'docker0', '!='), dport(8080), { counter: null }, IPTABLES_DNAT],
      ],
    },
    'DOCKER',
  ],
  [
    'a hostPort of CNI with iptables',
    {
      pre: [[hidden('addrtype'), jump('hostports')]],
      hostports: [[hidden('comment'), hidden('multiport'), jump('dn')]],
      dn: [
        [match(field('ip', 'saddr'), '10.1.1.0'), dport(8080), jump('setmark')],
        [dport(8080), IPTABLES_DNAT],
      ],
      setmark: [],
    },
    'dn',
  ],
  [
    'a hostPort of CNI with nftables',
    { pre: [[toLocal, jump('ports')]], ports: [[dport(8080), DNAT]] },
    'ports',
  ],
  [
    'a NodePort of kube-proxy with iptables',
    {
      pre: [[hidden('comment'), jump('services')]],
      services: [[hidden('addrtype'), jump('nodeports')]],
      nodeports: [[dport(8080), jump('svc')]],
      svc: [[hidden('statistic'), jump('sep')]],
      sep: [[match({ meta: { key: 'l4proto' } }, 'tcp'), IPTABLES_DNAT]],
    },
    'sep',
  ],
])('a port that %s leads elsewhere is told', (_what, chains, chain) => {
  const message = `Other programs lead port 8080/TCP of this host elsewhere in table ip other, chain ${chain}`;
  expect(reported(chains as Record<string, object[][]>)).toBe(message);
});

test('a NodePort of kube-proxy with nftables is told, and only its own port', () => {
  const chains = {
    pre: [[toLocal, { vmap: { key: keyed, data: '@nodeports' } }]],
    svc: [[{ dnat: { addr: { map: { key: { numgen: {} }, data: { set: [[0, '10.1.1.1']] } } } } }]],
  };
  const nodePorts = (port: number) => [
    map('nodeports', [
      [{ concat: ['udp', 8080] }, { accept: null }],
      [{ concat: ['tcp', port] }, { goto: { target: 'svc' } }],
    ]),
  ];
  expect(reported(chains, nodePorts(8080))).toContain('chain svc');
  expect(reported(chains, nodePorts(8081))).toBeUndefined();
});

test('a port in a map of addresses is told, and only its own port', () => {
  const dnat = { dnat: { addr: { map: { key: keyed, data: '@reservations' } } } };
  const reserved = (port: number) => [
    map('reservations', [[{ concat: ['tcp', port] }, { concat: ['10.1.1.1', 80] }]]),
  ];
  expect(reported({ pre: [[dnat]] }, reserved(8080))).toContain('chain pre');
  expect(reported({ pre: [[dnat]] }, reserved(8081))).toBeUndefined();
});

test('a port in an element of a map with a comment is told, and only its own port', () => {
  const chains = { pre: [[toLocal, { vmap: { key: keyed, data: '@ports' } }]], svc: [[DNAT]] };
  const commented = (port: number) => [
    map('ports', [[{ elem: { val: { concat: ['tcp', port] }, comment: 'web' } }, jump('svc')]]),
  ];
  expect(reported(chains, commented(8080))).toContain('chain svc');
  expect(reported(chains, commented(8081))).toBeUndefined();
});

test.each(['numgen', 'jhash', 'symhash'])(
  'a port that is led to one of several targets by %s is told',
  (by) => {
    const chains = {
      pre: [[dport(8080), { vmap: { key: { [by]: { mod: 2 } }, data: { set: [[0, jump('svc')]] } } }]],
      svc: [[DNAT]],
    };
    expect(reported(chains)).toContain('chain svc');
  },
);

test('a port is judged once until the rules are read again', () => {
  let reads = 0;
  const expression = {
    get match() {
      reads++;
      return dport(8080).match;
    },
  };
  const place = { family: 'ip', table: 'other' };
  const ruleset: RulesetEntry[] = [
    { chain: { ...place, name: 'pre', hook: 'prerouting' } },
    { rule: { ...place, chain: 'pre', expr: [expression, DNAT] } },
  ];
  const ports = new PublishedPorts(natLayout({}), []);
  ports.notice({ ruleset, links: LINKS });
  expect(ports.faultOf(PORT)).toBeDefined();
  const once = reads;
  expect(ports.faults([PORT]).size).toBe(1);
  expect(reads).toBe(once);
  ports.notice({ ruleset: [], links: LINKS });
  expect(ports.faultOf(PORT)).toBeUndefined();
});

test.each([
  ['another port', { pre: [[dport(8081), DNAT]] }],
  ['the other protocol', { pre: [[dport(8080, 'udp'), DNAT]] }],
  ['another address', { pre: [[match(field('ip', 'daddr'), '10.96.0.9'), dport(8080), DNAT]] }],
  ['the address of a dummy device', { pre: [[match(field('ip', 'daddr'), SERVICE), dport(8080), DNAT]] }],
  ['IPv6', { pre: [[dport(8080), { dnat: { family: 'ip6', addr: 'fd00::1', port: 80 } }]] }],
  [
    'IPv6, with a map',
    {
      pre: [
        [
          {
            dnat: {
              family: 'ip6',
              addr: { map: { key: keyed, data: { set: [[{ concat: ['tcp', 8080] }, 'fd00::1']] } } },
            },
          },
        ],
      ],
    },
  ],
  [
    'marked packets, with a map',
    {
      pre: [[dport(8080), { vmap: { key: { meta: { key: 'mark' } }, data: { set: [[1, jump('svc')]] } } }]],
      svc: [[DNAT]],
    },
  ],
  ['one device', { pre: [[match({ meta: { key: 'iifname' } }, 'docker0'), dport(8080), DNAT]] }],
  ['one sender', { pre: [[match(field('ip', 'saddr'), '10.0.0.1'), dport(8080), DNAT]] }],
  ['marked packets', { pre: [[match({ meta: { key: 'mark' } }, 1), dport(8080), DNAT]] }],
  ['hidden ports', { pre: [[hidden('multiport'), IPTABLES_DNAT]] }],
  ['packets of a set', { pre: [[hidden('set'), dport(8080), IPTABLES_DNAT]] }],
  [
    'packets that an earlier rule accepts',
    {
      pre: [
        [toLocal, { accept: null }],
        [dport(8080), DNAT],
      ],
    },
  ],
  [
    'packets that an earlier rule returns',
    { pre: [[{ goto: { target: 'none' } }], [dport(8080), DNAT]], none: [] },
  ],
])('a rule about %s is not told', (_what, chains) => {
  expect(reported(chains as Record<string, object[][]>)).toBeUndefined();
});

test('only the address at which ports are reached matters', () => {
  const chains = { pre: [[match(field('ip', 'daddr'), HOST), dport(8080), DNAT]] };
  expect(reported(chains, [], HOST)).toBeDefined();
  expect(reported(chains, [], '192.0.2.9')).toBeUndefined();
});

test('chains that jump to each other end', () => {
  expect(reported({ pre: [[jump('a')]], a: [[jump('pre')]] })).toBeUndefined();
});
