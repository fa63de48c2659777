import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import type { Attachment, WantedAttachments } from './attachments.ts';
import { chooseAddress, type NatLayout, tapName } from './layout.ts';
import { isOfNamespace, type NamespaceRepair } from './namespaces.ts';
import type { Link } from './devices.ts';
import {
  findOverlap,
  foreignDevices,
  ipCommands,
  type ObservedNetwork,
  ownDevices,
  planRepairs,
  type Repair,
} from './plan.ts';

const layout: NatLayout = natLayout({
  subnet: '10.213.0.0/20',
  probeSubnet: '198.18.213.0/24',
  connectionsPerGuest: 100,
});

function attachments(uids: readonly string[]): Attachment[] {
  const taken = new Set<string>();
  return uids.map((uid) => {
    const address = chooseAddress(layout, uid, taken);
    taken.add(address);
    return { uid, macAddress: '52:54:00:00:00:01', address, tap: tapName(layout, uid), ports: [] };
  });
}

/** Returns the wanted state of a host that has only machines. The tests of programs in namespaces are in namespaceplan.test.ts. */
function wantedOf(machines: readonly Attachment[]): WantedAttachments {
  return { machines, namespaces: [] };
}

const ROUTE = { dst: '10.213.0.0/20', dev: layout.bridge };
const GATEWAY = '10.213.0.1/20';
const NO_NAMESPACES = { files: new Map(), unreadable: new Map(), routes: [] };

const FRESH: Link = {
  index: 0,
  peer: undefined,
  kind: '',
  up: false,
  master: undefined,
  isolated: false,
  addresses: [],
  ipv6: false,
  carrier: false,
};

/** Model of a host. The model applies repairs as the kernel does. */
class Host {
  readonly links: Map<string, Link>;
  state: Omit<ObservedNetwork, 'links'>;

  constructor(observed: ObservedNetwork) {
    const { links, ...state } = observed;
    this.links = new Map(
      [...links].map(([name, link]) => [name, { ...link, addresses: [...link.addresses] }]),
    );
    this.state = state;
  }

  observe(): ObservedNetwork {
    return { links: this.links, ...this.state };
  }

  perform(repair: Repair): void {
    const performed: {
      [K in Exclude<Repair, NamespaceRepair>['kind']]: (one: Extract<Repair, { kind: K }>) => void;
    } = {
      removeDevice: ({ device }) => this.links.delete(device),
      createBridge: () => {
        this.#create(layout.bridge, 'bridge');
        Object.assign(this.state, { guestRoutes: [] });
      },
      addressDevice: ({ device, address }) => {
        this.#change(device, (link) => link.addresses.push(address));
        this.#routeByKernel(device);
      },
      raiseDevice: ({ device }) => {
        this.#change(device, (link) => Object.assign(link, { up: true }));
        this.#routeByKernel(device);
      },
      routeGuests: () => Object.assign(this.state, { guestRoutes: [ROUTE] }),
      createTap: ({ device }) => this.#create(device, 'tun'),
      connectPort: ({ device }) =>
        this.#change(device, (link) => Object.assign(link, { master: layout.bridge, isolated: true })),
      disableIPv6: ({ device }) => this.#change(device, (link) => Object.assign(link, { ipv6: false })),
      rebuildProbe: () => {
        this.links.delete(layout.probe.innerPort);
        this.links.delete(layout.probe.outerPort);
        this.#create(layout.probe.innerPort, 'veth');
        this.#create(layout.probe.outerPort, 'veth');
        this.state = { ...this.state, probeEnds: true };
      },
      loadRules: () => Object.assign(this.state, { rulesCurrent: true }),
      enableForwarding: () => Object.assign(this.state, { forwarding: true }),
      informDnsmasq: () => Object.assign(this.state, { dnsmasqKnows: true }),
      startDnsmasq: () => Object.assign(this.state, { dnsmasqRuns: true }),
      openMetadata: () => Object.assign(this.state, { metadataListens: true }),
    };
    if (!isOfNamespace(repair)) {
      (performed[repair.kind] as (one: Repair) => void)(repair);
    }
  }

  /** Adds the route to the guests, as the kernel does when the bridge is up and has its address. */
  #routeByKernel(device: string): void {
    const link = this.links.get(device);
    if (device === layout.bridge && link?.up && link.addresses.includes(GATEWAY)) {
      Object.assign(this.state, { guestRoutes: [ROUTE] });
    }
  }

  #create(name: string, kind: string): void {
    if (this.links.has(name)) {
      throw new Error(`${name} exists`);
    }
    this.links.set(name, { ...FRESH, kind, addresses: [], ipv6: true });
  }

  #change(name: string, change: (link: Link) => void): void {
    const link = this.links.get(name);
    if (!link) {
      throw new Error(`${name} does not exist`);
    }
    change(link);
  }
}

function converge(host: Host, wanted: Attachment[]): Repair[] {
  const done: Repair[] = [];
  for (let round = 0; round < 3; round++) {
    const repairs = planRepairs(layout, wantedOf(wanted), host.observe());
    if (repairs.length === 0) {
      return done;
    }
    for (const repair of repairs) {
      host.perform(repair);
    }
    done.push(...repairs);
  }
  throw new Error('does not converge');
}

const uids = fc.uniqueArray(fc.uuid(), { maxLength: 5 });
const link = (kind: string) =>
  fc.record<Link>({
    index: fc.constant(7),
    peer: fc.constant(undefined),
    kind: fc.constant(kind),
    up: fc.boolean(),
    master: fc.constantFrom(undefined, layout.bridge, 'docker0'),
    isolated: fc.boolean(),
    addresses: fc.subarray(['10.213.0.1/20', '198.18.213.1/24', '192.168.1.5/24']),
    ipv6: fc.boolean(),
    carrier: fc.boolean(),
  });

/** Returns any possible state of the host: each of Berth's devices missing or in any condition, stray devices, and foreign devices. */
function anyHost(names: readonly string[]): fc.Arbitrary<ObservedNetwork> {
  const kinds = new Map([
    [layout.bridge, 'bridge'],
    [layout.probe.innerPort, 'veth'],
    [layout.probe.outerPort, 'veth'],
    ['eth0', ''],
    ['docker0', 'bridge'],
    [tapName(layout, 'long gone'), 'tun'],
    ...names.map((uid) => [tapName(layout, uid), 'tun'] as const),
  ]);
  const each = [...kinds].map(([name, kind]) =>
    fc.option(fc.tuple(fc.constant(name), link(kind)), { nil: undefined }),
  );
  return fc.record({
    links: fc.tuple(...each).map((all) => new Map(all.filter((one) => one !== undefined))),
    forwarding: fc.boolean(),
    probeEnds: fc.boolean(),
    rulesCurrent: fc.boolean(),
    dnsmasqRuns: fc.boolean(),
    dnsmasqKnows: fc.boolean(),
    metadataListens: fc.boolean(),
    namespaces: fc.constant(NO_NAMESPACES),
    guestRoutes: fc.constantFrom([], [ROUTE], [{ ...ROUTE, dev: 'docker0' }]),
  });
}

const scenario = uids.chain((names) => fc.tuple(fc.constant(attachments(names)), anyHost(names)));

test('from any state the repairs end in what should be, and then there is nothing to repair', () => {
  fc.assert(
    fc.property(scenario, ([wanted, observed]) => {
      const host = new Host(observed);
      converge(host, wanted);
      const { links, state } = { links: host.links, state: host.state };
      expect(Object.values(state)).not.toContain(false);
      for (const name of [...wanted.map((one) => one.tap), layout.probe.innerPort]) {
        expect(links.get(name)).toMatchObject({ up: true, isolated: true, master: layout.bridge });
      }
      for (const name of [...wanted.map((one) => one.tap), layout.bridge]) {
        expect(links.get(name)).toMatchObject({ ipv6: false });
      }
      expect(links.get(layout.bridge)).toMatchObject({ kind: 'bridge', up: true });
      expect(links.get(layout.bridge)?.addresses).toContain(GATEWAY);
      expect(state.guestRoutes).toContainEqual(ROUTE);
      const taps = [...links.keys()].filter((name) => name.startsWith(layout.tapPrefix));
      expect(taps.sort()).toEqual(wanted.map((one) => one.tap).sort());
      expect(planRepairs(layout, wantedOf(wanted), host.observe())).toEqual([]);
    }),
    { numRuns: 500 },
  );
});

test("devices of others are never touched, and a machine's working tap is never taken away", () => {
  fc.assert(
    fc.property(scenario, ([wanted, observed]) => {
      const host = new Host(observed);
      const working = wanted.map((one) => one.tap).filter((tap) => observed.links.has(tap));
      const commands = converge(host, wanted).flatMap((repair) => ipCommands(layout, repair));
      expect(commands.filter((one) => /\b(eth0|docker0)\b/.test(one))).toEqual([]);
      for (const name of ['eth0', 'docker0']) {
        expect(host.links.get(name)).toEqual(observed.links.get(name));
      }
      for (const tap of working) {
        expect(commands).not.toContain(`link delete ${tap}`);
        expect(commands.filter((one) => one.startsWith(`tuntap add dev ${tap} `))).toEqual([]);
      }
    }),
    { numRuns: 500 },
  );
});

test('one thing broken is one repair', () => {
  const wanted = attachments(['a', 'b']);
  const host = new Host({
    links: new Map(),
    forwarding: false,
    probeEnds: false,
    rulesCurrent: false,
    dnsmasqRuns: false,
    dnsmasqKnows: false,
    metadataListens: false,
    namespaces: NO_NAMESPACES,
    guestRoutes: [],
  });
  converge(host, wanted);
  const { links, state } = host;
  const [device = ''] = wanted.map(({ tap }) => tap);
  const breaks: [damage: () => unknown, repair: Repair][] = [
    [
      () => Object.assign(links.get(layout.bridge) ?? {}, { up: false }),
      { kind: 'raiseDevice', device: layout.bridge },
    ],
    [() => Object.assign(links.get(device) ?? {}, { ipv6: true }), { kind: 'disableIPv6', device }],
    [() => Object.assign(links.get(device) ?? {}, { master: undefined }), { kind: 'connectPort', device }],
    [() => Object.assign(state, { guestRoutes: [] }), { kind: 'routeGuests' }],
    [() => Object.assign(state, { rulesCurrent: false }), { kind: 'loadRules' }],
    [() => Object.assign(state, { forwarding: false }), { kind: 'enableForwarding' }],
    [() => Object.assign(state, { dnsmasqKnows: false }), { kind: 'informDnsmasq' }],
    [() => Object.assign(state, { dnsmasqRuns: false }), { kind: 'startDnsmasq' }],
    [() => Object.assign(state, { metadataListens: false }), { kind: 'openMetadata' }],
  ];
  for (const [damage, repair] of breaks) {
    damage();
    expect(converge(host, wanted)).toEqual([repair]);
  }
});

test('foreign devices with the names of our devices are left alone, and everything else is repaired', () => {
  const foreign = fc.constantFrom('bond', 'dummy', '');
  const [a = '', b = ''] = attachments(['a', 'b']).map((one) => one.tap);
  const [stray, { bridge, probe }] = [tapName(layout, 'long gone'), layout];
  const names = [bridge, probe.innerPort, probe.outerPort, a, stray];
  fc.assert(
    fc.property(
      anyHost(['a', 'b']),
      fc.subarray(names, { minLength: 1 }),
      foreign,
      (observed, taken, kind) => {
        const host = new Host(observed);
        const theirs = { ...FRESH, kind, ipv6: true };
        for (const name of taken) {
          host.links.set(name, { ...theirs });
        }
        const before = new Set(host.links.keys());
        converge(host, attachments(['a', 'b']));
        for (const name of taken) {
          expect(host.links.get(name)).toEqual(theirs);
        }
        expect([...foreignDevices(layout, host.links).keys()].sort()).toEqual([...taken].sort());
        expect(ownDevices(layout, host.links).filter((name) => taken.includes(name))).toEqual([]);
        const { dnsmasqRuns, metadataListens, probeEnds, ...others } = host.state;
        expect(Object.values(others)).not.toContain(false);
        expect(host.links.get(b)).toMatchObject({ kind: 'tun', up: true, ipv6: false });
        // dnsmasq must not be started for a device of another program, but a running dnsmasq is not stopped.
        expect(dnsmasqRuns).toBe(!taken.includes(bridge) || observed.dnsmasqRuns);
        expect(metadataListens).toBe(!taken.includes(bridge) || observed.metadataListens);
        expect(probeEnds || taken.some((name) => name.startsWith('bp'))).toBe(true);
        expect(host.links.has(stray)).toBe(taken.includes(stray) && before.has(stray));
      },
    ),
    { numRuns: 500 },
  );
});

test('the fault of a foreign device names the device, both kinds and the next step', () => {
  const links = new Map([[layout.bridge, { ...FRESH, kind: 'bond' }]]);
  expect(foreignDevices(layout, links).get(layout.bridge)).toBe(
    'Device berth0 is of kind "bond", but the network needs this name for a device of kind "bridge"; rename or delete the device',
  );
});

test('addresses are within the subnet, never twice, and stay the same for the same machine', () => {
  fc.assert(
    fc.property(fc.uniqueArray(fc.uuid(), { minLength: 2, maxLength: 40 }), (names) => {
      const all = attachments(names).map((one) => one.address);
      expect(new Set(all).size).toBe(names.length);
      for (const address of all) {
        expect(address).toMatch(/^10\.213\.(\d|1[0-5])\.\d+$/);
      }
      expect(chooseAddress(layout, names[0] ?? '', new Set())).toBe(all[0]);
    }),
  );
});

test('a network of the host that overlaps is named', () => {
  const links = new Map([
    ['eth0', { ...FRESH, addresses: ['10.213.4.9/24'] }],
    [layout.bridge, { ...FRESH, kind: 'bridge', addresses: ['10.213.0.1/20'] }],
  ]);
  expect(findOverlap(layout, links)).toBe(
    'The setting network.subnet (10.213.0.0/20) overlaps 10.213.4.9/24 on device eth0; choose a network that this host does not use',
  );
  links.delete('eth0');
  expect(findOverlap(layout, links)).toBeUndefined();
});
