import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  DEDICATED_KEY,
  HOST_KEY,
  HOST_MARK,
  HOST_VALUE,
  MACOS_GUEST_RESOURCE,
  SHARED_DISK_RESOURCE,
  SLOT_RESOURCE,
} from '../api/v1alpha1/names.ts';
import type { Namespace, Node, Pod } from '../kube/core.ts';
import { architecturesFor, type Asker, type Fleet, type Needs, Places } from './places.ts';

const NAMESPACES = ['ci', 'qa'] as const;
const ARCHITECTURES = ['amd64', 'arm64'] as const;
/** More Pods than all hosts of a generated fleet have slots. */
const MANY = 40;

/** A host in words. */
interface HostFacts {
  readonly slots: number;
  readonly architecture: (typeof ARCHITECTURES)[number];
  /** Namespace to which the host is dedicated. */
  readonly owner: (typeof NAMESPACES)[number] | undefined;
  readonly isTagged: boolean;
  readonly state: 'open' | 'cordoned' | 'silent' | 'tainted';
  /** Number of macOS guests that the host can run. */
  readonly macOS: number;
}

/** A Pod in words, as the operator makes it. */
interface PodFacts {
  readonly namespace: (typeof NAMESPACES)[number];
  readonly architecture: (typeof ARCHITECTURES)[number] | undefined;
  /** Number of the only host that it can run on. */
  readonly only: number | undefined;
  readonly isTagged: boolean;
  readonly isMacOS: boolean;
  readonly port: number | undefined;
}

const hosts = fc.array(
  fc.record<HostFacts>({
    slots: fc.nat({ max: 4 }),
    architecture: fc.constantFrom(...ARCHITECTURES),
    owner: fc.constantFrom(undefined, undefined, ...NAMESPACES),
    isTagged: fc.boolean(),
    state: fc.constantFrom('open', 'open', 'open', 'open', 'cordoned', 'silent', 'tainted'),
    macOS: fc.nat({ max: 2 }),
  }),
  { minLength: 1, maxLength: 6, size: 'max' },
);
const pod = fc.record<PodFacts>({
  namespace: fc.constantFrom(...NAMESPACES),
  architecture: fc.constantFrom(undefined, ...ARCHITECTURES),
  only: fc.option(fc.nat({ max: 5 }), { nil: undefined, freq: 3 }),
  isTagged: fc.boolean(),
  isMacOS: fc.boolean(),
  port: fc.option(fc.constantFrom(80, 81), { nil: undefined, freq: 3 }),
});
const waiting = fc.array(pod, { maxLength: 16, size: 'max' });
/** Needs of a small VM. */
const SMALL = { cpu: 1, memory: '1Gi', disk: '1Gi', ports: [], sharesDisk: false };
const needs = fc.record<Needs>({
  cpu: fc.constant(SMALL.cpu),
  memory: fc.constant(SMALL.memory),
  disk: fc.constant(SMALL.disk),
  ports: fc.constant(SMALL.ports),
  sharesDisk: fc.constant(SMALL.sharesDisk),
  architecture: fc.constantFrom(undefined, ...ARCHITECTURES),
  os: fc.constantFrom(undefined, 'MacOS', 'Linux'),
});

function node(facts: HostFacts, at: number): Node {
  const { slots, architecture, owner, isTagged, state, macOS } = facts;
  const effect = 'NoSchedule' as const;
  const labels = {
    [HOST_MARK]: HOST_VALUE,
    'kubernetes.io/arch': architecture,
    ...(owner !== undefined && { [DEDICATED_KEY]: owner }),
    ...(isTagged && { 'tag.berth.dev/fast': '' }),
  };
  const taints = [
    { key: HOST_KEY, value: HOST_VALUE, effect },
    ...(owner === undefined ? [] : [{ key: DEDICATED_KEY, value: owner, effect }]),
    ...(state === 'tainted' ? [{ key: 'repair', effect }] : []),
  ];
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: `host${at}`, labels },
    spec: { taints, ...(state === 'cordoned' && { unschedulable: true }) },
    status: {
      allocatable: {
        [SLOT_RESOURCE]: String(slots),
        [MACOS_GUEST_RESOURCE]: String(macOS),
        [SHARED_DISK_RESOURCE]: '1',
        cpu: '64',
        memory: '64Gi',
        'ephemeral-storage': '100Gi',
      },
      conditions: [{ type: 'Ready', status: state === 'silent' ? 'Unknown' : 'True' }],
    },
  };
}

function podOf(facts: PodFacts, at: number, nodeName?: string): Pod {
  const { namespace, architecture, only, isTagged, isMacOS, port } = facts;
  const matchExpressions = [
    { key: HOST_MARK, operator: 'In' as const, values: [HOST_VALUE] },
    ...(architecture === undefined
      ? []
      : [{ key: 'kubernetes.io/arch', operator: 'In' as const, values: [architecture] }]),
  ];
  const matchFields =
    only === undefined ? [] : [{ key: 'metadata.name', operator: 'In' as const, values: [`host${only}`] }];
  const requests = { [SLOT_RESOURCE]: '1', cpu: '500m', ...(isMacOS && { [MACOS_GUEST_RESOURCE]: '1' }) };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: `vm${at}`, namespace },
    spec: {
      ...(nodeName !== undefined && { nodeName }),
      ...(isTagged && { nodeSelector: { 'tag.berth.dev/fast': '' } }),
      affinity: {
        nodeAffinity: {
          requiredDuringSchedulingIgnoredDuringExecution: {
            nodeSelectorTerms: [{ matchExpressions, ...(matchFields.length > 0 && { matchFields }) }],
          },
        },
      },
      tolerations: [
        { key: HOST_KEY, operator: 'Equal', value: HOST_VALUE, effect: 'NoSchedule' },
        { key: DEDICATED_KEY, operator: 'Equal', value: namespace, effect: 'NoSchedule' },
      ],
      containers: [
        {
          name: 'machine',
          image: '',
          resources: { requests },
          ...(port !== undefined && { ports: [{ containerPort: port, hostPort: port }] }),
        },
      ],
    },
    status: { phase: nodeName === undefined ? 'Pending' : 'Running' },
  };
}

function asker(wants: Partial<Needs>, namespace: (typeof NAMESPACES)[number] = 'ci'): Asker {
  const found: Namespace = { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } };
  return { key: 'set', namespace: found, prefix: 'set-', needs: { ...SMALL, ...wants } };
}

/** Returns how many VMs of the only set have a place. */
function countPlaces(fleet: Fleet, one: Asker): number {
  const places = new Places(fleet, [one]);
  let count = 0;
  while (places.take(one)) {
    count += 1;
  }
  return count;
}

/** Whether the host takes such a Pod if it has room, by the rules in words. */
function takes(host: HostFacts, at: number, wants: PodFacts): boolean {
  return (
    host.state === 'open' &&
    (host.owner === undefined || host.owner === wants.namespace) &&
    (wants.architecture === undefined || wants.architecture === host.architecture) &&
    (wants.only === undefined || wants.only === at) &&
    (!wants.isTagged || host.isTagged) &&
    (!wants.isMacOS || host.macOS > 0) &&
    host.slots > 0
  );
}

const PLAIN: PodFacts = {
  namespace: 'ci',
  architecture: undefined,
  only: undefined,
  isTagged: false,
  isMacOS: false,
  port: undefined,
};

/** An open host of four slots, without tags, owner and guests with macOS. */
const HOST: HostFacts = {
  slots: 4,
  architecture: 'arm64',
  owner: undefined,
  isTagged: false,
  state: 'open',
  macOS: 0,
};

describe('the places that are free for a set', () => {
  it('are not fewer because of VMs that no host takes, whatever hosts and VMs there are', () => {
    fc.assert(
      fc.property(hosts, waiting, needs, (facts, wants, own) => {
        const nodes = facts.map(node);
        const able = wants.filter((one) => facts.some((host, at) => takes(host, at, one)));
        const [all, some] = [wants, able].map((list) =>
          countPlaces({ nodes, pods: list.map((one, at) => podOf(one, at)) }, asker(own)),
        );
        expect(all).toBe(some);
      }),
      { numRuns: 500 },
    );
  });

  it('are those of its hosts, less at most one for each waiting VM that one of these hosts takes', () => {
    fc.assert(
      fc.property(hosts, waiting, needs, (facts, wants, own) => {
        const nodes = facts.map(node);
        const pods = wants.map((one, at) => podOf(one, at));
        const free = countPlaces({ nodes, pods: [] }, asker(own));
        const isOurs = (at: number): boolean =>
          countPlaces({ nodes: nodes.slice(at, at + 1), pods: [] }, asker(own)) > 0;
        const rivals = wants.filter((one) =>
          facts.some((host, at) => takes(host, at, one) && isOurs(at)),
        ).length;
        const left = countPlaces({ nodes, pods }, asker(own));
        expect(left).toBeLessThanOrEqual(free);
        expect(left).toBeGreaterThanOrEqual(free - rivals);
      }),
      { numRuns: 500 },
    );
  });

  it('are none if more VMs wait than all hosts have slots, and each host takes each of them', () => {
    const able = hosts.filter((facts) =>
      facts.every(({ state, owner }) => state === 'open' && owner === undefined),
    );
    fc.assert(
      fc.property(able, needs, (facts, own) => {
        const pods = Array.from({ length: MANY }, (_, at) => podOf(PLAIN, at));
        expect(countPlaces({ nodes: facts.map(node), pods }, asker(own))).toBe(0);
      }),
      { numRuns: 200 },
    );
  });

  it('are as many as the hosts can run macOS guests, if its VMs have macOS', () => {
    const nodes = [node({ ...HOST, macOS: 2 }, 0), node(HOST, 1)];
    const mac = podOf({ ...PLAIN, isMacOS: true }, 0, 'host0');
    expect(countPlaces({ nodes, pods: [mac] }, asker({ os: 'MacOS' }))).toBe(1);
    expect(countPlaces({ nodes, pods: [mac] }, asker({}))).toBe(7);
    // The third VM with macOS has no host, so it takes the place of nobody.
    const third = [
      mac,
      podOf({ ...PLAIN, isMacOS: true }, 1, 'host0'),
      podOf({ ...PLAIN, isMacOS: true }, 2),
    ];
    expect(countPlaces({ nodes, pods: third }, asker({}))).toBe(6);
  });

  it('are those of one host if the VMConfig names it, and one a host if VMs use its shared disk', () => {
    const fleet = { nodes: [node(HOST, 0), node({ ...HOST, architecture: 'amd64' }, 1)], pods: [] };
    const count = (wants: Partial<Needs>) => countPlaces(fleet, asker(wants));
    expect(count({})).toBe(8);
    expect(count({ architecture: 'amd64' })).toBe(4);
    expect(count({ placement: { node: 'host1' } })).toBe(4);
    expect(count({ architecture: 'arm64', placement: { node: 'host1' } })).toBe(0);
    expect(count({ sharesDisk: true })).toBe(2);
    // The hypervisor needs memory beside that of the guest.
    expect(count({ memory: '32Gi' })).toBe(2);
  });

  it('are as many as the disk of a host has room for, and one a host if the VMs reserve a port', () => {
    const fleet = { nodes: [node(HOST, 0), node(HOST, 1)], pods: [] };
    const count = (wants: Partial<Needs>, pods: Pod[] = []) => countPlaces({ ...fleet, pods }, asker(wants));
    expect(count({ disk: '40Gi' })).toBe(4);
    expect(count({ disk: '101Gi' })).toBe(0);
    const ports = ['8080:80', ':22'];
    expect(count({ ports })).toBe(2);
    const taken = podOf({ ...PLAIN, port: 8080 }, 0, 'host0');
    expect(count({ ports }, [taken])).toBe(1);
    expect(count({ ports: ['8080:80/udp'] }, [taken])).toBe(2);
  });

  it('are not taken by a VM whose port is taken, nor by one that is being deleted', () => {
    const serving = { ...PLAIN, port: 80 };
    const nodes = [node(HOST, 0)];
    const pods = [podOf(serving, 0, 'host0'), podOf(serving, 1)];
    expect(countPlaces({ nodes, pods }, asker({}))).toBe(3);
    const going = podOf(PLAIN, 2);
    const gone = { ...going, metadata: { ...going.metadata, deletionTimestamp: '2030-01-01T00:00:00Z' } };
    expect(countPlaces({ nodes, pods: [gone] }, asker({}))).toBe(4);
  });
});

describe('the architectures of the hosts of a set', () => {
  it('are those of hosts that suit its VMs, also of hosts that are silent or cordoned now', () => {
    const nodes = [
      node(HOST, 0),
      node({ ...HOST, architecture: 'amd64', state: 'silent' }, 1),
      node({ ...HOST, architecture: 'amd64', state: 'cordoned' }, 2),
    ];
    const found = (wants: Partial<Needs>, hosts = nodes) => architecturesFor(asker(wants), hosts);
    expect(found({})).toEqual(['amd64', 'arm64']);
    expect(found({ placement: { node: 'host0' } })).toEqual(['arm64']);
    expect(found({ placement: { tag: 'fast', tagPolicy: 'Required' } })).toEqual([]);
    // A namespace with hosts of its own uses only these.
    expect(found({}, [...nodes, node({ ...HOST, owner: 'ci' }, 3)])).toEqual(['arm64']);
    expect(found({}, [node(HOST, 0), node({ ...HOST, architecture: 'amd64', state: 'tainted' }, 1)])).toEqual(
      ['arm64'],
    );
  });
});
