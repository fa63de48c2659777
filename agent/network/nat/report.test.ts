import { expect, test } from 'vitest';
import type { Attachment } from './attachments.ts';
import { foreignTables } from './foreignrules.ts';
import type { NatLayout } from './layout.ts';
import type { Link } from './devices.ts';
import type { Repair } from './plan.ts';
import { detachFault, type Evidence, NetworkFailures, reportOn } from './report.ts';

const layout = {
  bridge: 'berth0',
  subnet: { base: 0x0ad50000, prefix: 20 },
  probe: { innerPort: 'inner', outerPort: 'outer' },
} as NatLayout;
const [a, b] = ['a', 'b'].map(
  (uid): Attachment => ({ uid, macAddress: '', address: '10.213.0.20', tap: `tap-${uid}`, ports: [] }),
);
const PROGRAM = { uid: 'p', address: '198.18.213.20', device: 'bn-p', exposedPort: 5555, ports: [] };
const NO_FAULT: Evidence = {
  failedRepair: undefined,
  failedNamespaces: new Map(),
  foreignDevices: new Map(),
  links: new Map(),
  guestRoutes: [],
  closedUplinks: [],
  lostPaths: [],
  foreign: [],
  lostTaps: new Set(),
  lostNamespaces: new Set(),
  withheldPorts: new Map(),
};

function report(evidence: Partial<Evidence>): ReturnType<typeof reportOn> {
  return reportOn(
    layout,
    { machines: a && b ? [a, b] : [], namespaces: [PROGRAM] },
    { ...NO_FAULT, ...evidence },
  );
}

test('a foreign device in the place of a tap is the fault of its machine alone, also if a hypervisor lost the tap', () => {
  const foreignDevices = new Map([['tap-a', 'Device tap-a is foreign']]);
  const { healthy, faults, machines } = report({ foreignDevices, lostTaps: new Set(['tap-a']) });
  expect({ healthy, faults }).toEqual({ healthy: true, faults: ['Machine a: Device tap-a is foreign'] });
  expect(machines['a']).toEqual({ healthy: false, message: 'Device tap-a is foreign' });
  expect(machines['b']?.healthy).toBe(true);
});

test('a device that forwards nothing is told with the name of its switch, as sysctl reads it', () => {
  const { healthy, faults } = report({ closedUplinks: ['eth0.100'] });
  expect(healthy).toBe(false);
  expect(faults.join()).toContain('; set net/ipv4/conf/eth0.100/forwarding to 1');
});

test.each([
  ['10.213.0.17/28', false],
  ['10.213.0.20/32', false],
  ['10.213.0.21/32', true],
  ['10.213.0.2/20', true],
  ['10.0.0.1/8', true],
])('a guest with an address in the network %s of another device is healthy: %s', (network, healthy) => {
  const link = (addresses: string[]): Link => ({ addresses }) as Link;
  const links = new Map([
    [layout.bridge, link(['10.213.0.1/20'])],
    ['docker1', link([network])],
  ]);
  const { machines } = report({ links });
  expect(machines['a']?.healthy).toBe(healthy);
  expect(machines['p']?.healthy).toBe(true);
  if (!healthy) {
    expect(machines['a']?.message).toContain(`docker1 has the network ${network}`);
  }
});

test.each([
  ['10.213.0.16/28', 'tun0', 'device tun0'],
  ['10.213.0.20', '', 'no device'],
  ['10.213.0.21', 'tun0', undefined],
  ['10.213.0.16/28', 'berth0', undefined],
  ['10.213.0.0/20', 'tun0', undefined],
])('the route to %s by "%s" leads the packets for a guest to: %s', (dst, dev, elsewhere) => {
  const { machines } = report({
    guestRoutes: [
      { dst: '10.213.0.0/20', dev: 'berth0' },
      { dst, dev },
    ],
  });
  expect(machines['a']?.healthy).toBe(elsewhere === undefined);
  expect(machines['p']?.healthy).toBe(true);
  if (elsewhere !== undefined) {
    const reported = `The route to ${dst} leads packets for 10.213.0.20 to ${elsewhere}`;
    expect(machines['a']?.message).toContain(reported);
  }
});

/** A firewall such as ufw drops everything to the host that its rules do not accept. */
test('a firewall of the host is named if DNS queries of guests are lost, and is no fault by itself', () => {
  const place = { family: 'ip', table: 'filter' };
  const ssh = { match: { op: '==', left: { payload: { protocol: 'tcp', field: 'dport' } }, right: 22 } };
  const foreign = foreignTables(
    [
      { table: { family: 'ip', name: 'filter' } },
      { chain: { ...place, name: 'INPUT', hook: 'input', policy: 'drop' } },
      { rule: { ...place, chain: 'INPUT', expr: [ssh, { accept: null }] } },
    ],
    [],
  );
  expect(report({ foreign })).toMatchObject({ healthy: true, faults: [] });
  expect(report({ foreign, lostPaths: ['out', 'dns'] }).faults).toEqual([
    'Packets from a guest to the outside are lost',
    expect.stringContaining('are lost; other programs drop packets in table ip filter, chain INPUT'),
  ]);
});

const dport = (port: number) => ({
  match: { op: '==', left: { payload: { protocol: 'udp', field: 'dport' } }, right: port },
});

test.each([
  ['dns', [dport(53), { drop: null }], true],
  ['dhcp', [dport(67), { drop: null }], true],
  ['dhcp', [dport(53), { drop: null }], false],
  ['dhcp', [{ xt: { type: 'match', name: 'comment' } }, { xt: { type: 'target', name: 'REJECT' } }], true],
  ['out', [dport(67), { drop: null }], false],
] as const)('a loss on the path %s names a firewall with the rule %j: %s', (path, expr, isNamed) => {
  const place = { family: 'ip', table: 'filter' };
  const foreign = foreignTables(
    [
      { table: { family: 'ip', name: 'filter' } },
      { chain: { ...place, name: 'INPUT', hook: 'input', policy: 'accept' } },
      { rule: { ...place, chain: 'INPUT', expr } },
    ],
    [],
  );
  const faults = report({ foreign, lostPaths: [path] }).faults.join();
  expect(faults.includes('table ip filter, chain INPUT')).toBe(isNamed);
});

test('a foreign device in the place of the bridge is the first fault of all machines', () => {
  const foreignDevices = new Map([[layout.bridge, 'Device berth0 is foreign']]);
  const { healthy, faults, machines } = report({ foreignDevices, lostPaths: ['out'] });
  expect({ healthy, faults }).toEqual({
    healthy: false,
    faults: ['Device berth0 is foreign', 'Packets from a guest to the outside are lost'],
  });
  const faulty = { healthy: false, message: faults.join('; ') };
  expect(machines).toEqual({ a: faulty, b: faulty, p: faulty });
});

test('a lost namespace and a failed repair of a namespace are the fault of its program alone', () => {
  for (const [evidence, expected] of [
    [{ lostNamespaces: new Set(['bn-p']) }, 'until its next start'],
    [{ failedNamespaces: new Map([['bn-p', 'The route was missing']]) }, 'The route was missing'],
    [{ foreignDevices: new Map([['bn-p', 'Device bn-p is foreign']]) }, 'Device bn-p is foreign'],
  ] as const) {
    const { healthy, machines } = report(evidence);
    expect(healthy).toBe(true);
    expect(machines['p']?.healthy).toBe(false);
    expect(machines['p']?.message).toContain(expected);
    expect(machines['a']?.healthy).toBe(true);
  }
});

test('a leftover that cannot be removed is told, and is the fault of no machine', () => {
  const reported = 'Network namespace bn-old was left over, and the repair failed';
  const { healthy, faults, machines } = report({ failedNamespaces: new Map([['bn-old', reported]]) });
  expect({ healthy, faults }).toEqual({ healthy: true, faults: [reported] });
  expect(Object.values(machines).map((one) => one.healthy)).toEqual([true, true, true]);
});

function tap(device: string): Repair {
  return { kind: 'createTap', device, owner: undefined };
}

test('the first three failed repairs are named, and the others are counted', () => {
  const failures = new NetworkFailures({ namespaces: { prefix: 'bn' } } as NatLayout);
  const first = [0, 1, 2].map((index) => `Tap bt${index} was missing, and it failed`).join('; ');
  for (let index = 0; index < 500; index++) {
    failures.add(tap(`bt${index}`), 'it failed');
    if (index === 2) {
      expect(failures.described().failedRepair).toBe(first);
    }
  }
  expect(failures.described().failedRepair).toBe(`${first}; Further failed repairs: 497`);
});

test('a failed repair of a namespace concerns no machine but its own, and precludes only its further repairs', () => {
  const failures = new NetworkFailures({ namespaces: { prefix: 'bn' } } as NatLayout);
  failures.add({ kind: 'createPair', device: 'bn1' }, 'it failed');
  failures.add({ kind: 'raiseDevice', device: 'bn1' }, 'it failed too');
  const reported = 'Network namespace bn1 was not connected to this host, and it failed';
  expect(failures.areGeneral).toBe(false);
  expect(failures.described()).toEqual({
    failedRepair: undefined,
    failedNamespaces: new Map([['bn1', reported]]),
  });
  expect(failures.precludes({ kind: 'raiseDevice', device: 'bn1' })).toBe(true);
  expect(failures.precludes({ kind: 'raiseDevice', device: 'bn2' })).toBe(false);
  expect(failures.precludes({ kind: 'loadRules' })).toBe(false);
});

test.each([
  ['nothing of the member is left', {}, undefined],
  ['its device is left', { device: 'tap-a' }, 'The list could not be written'],
  ['its rules are perhaps left', { rulesCurrent: false }, 'The list could not be written'],
  ['its network namespace is left', { left: 'tap-a' }, 'It is left'],
  ['the network namespace of another is left', { left: 'bn-p' }, undefined],
  ['another program has a device with its name', { device: 'tap-a', kind: 'veth' }, undefined],
])('a detachment while another repair fails: %s', (_what, found, fault) => {
  const {
    device = 'tap-b',
    kind = 'tun',
    rulesCurrent = true,
    left = 'none',
  } = found as Record<string, never>;
  const named = { ...layout, tapPrefix: 'tap-', namespaces: { prefix: 'bn' } } as NatLayout;
  const failures = {
    failedRepair: 'The list could not be written',
    failedNamespaces: new Map([[left, 'It is left']]),
  };
  const links = new Map([[device, { kind } as Link]]);
  expect(detachFault(named, 'tap-a', failures, { links, rulesCurrent })).toBe(fault);
});
