import { expect, it } from 'vitest';
import { type HostNode, type HostPod, nodeItem } from './host.ts';
import { nodeItemSchema } from './node.ts';

const NODE: HostNode = {
  metadata: { name: 'host-1', labels: { 'tag.berth.dev/fast': '', 'tag.berth.dev/ci': '', other: 'label' } },
  status: {
    allocatable: { cpu: '15500m', memory: '64Gi', 'berth.dev/slot': '4' },
    addresses: [{ type: 'InternalIP', address: '192.0.2.1' }],
    conditions: [{ type: 'Ready', status: 'True' }],
    nodeInfo: { architecture: 'arm64', osImage: '' },
  },
};

function pod(phase: 'Running' | 'Succeeded', requests: Record<string, string>): HostPod {
  return {
    metadata: { name: 'pod' },
    spec: { nodeName: 'host-1', containers: [{ resources: { requests } }] },
    status: { phase },
  };
}

it('subtracts what runs on the host, and counts whole CPUs', () => {
  const requests = { cpu: '2', memory: '4Gi', 'berth.dev/slot': '1' };
  const pods = [pod('Running', requests), pod('Running', { cpu: '600m' }), pod('Succeeded', requests)];
  expect(nodeItem(NODE, pods, 'platform-ci')).toEqual({
    name: 'host-1',
    namespace: 'platform-ci',
    nodeIP: '192.0.2.1',
    availableCpu: 12,
    availableMemory: '64.42G',
    availableGpu: 0,
    allocatableCpu: 15,
    allocatableMemory: '68.72G',
    allocatableGpu: 0,
    nodeType: 'WORKER',
    phase: 'READY',
    tags: ['ci', 'fast'],
    architecture: 'arm64',
    slots: 4,
    slotsFree: 3,
    versions: {},
  });
});

it('shows an overfull or unknown host without negative numbers', () => {
  const empty: HostNode = { ...NODE, status: {} };
  expect(
    nodeItem(empty, [pod('Running', { cpu: '1', memory: '1Gi', 'berth.dev/slot': '1' })], 'ns'),
  ).toMatchObject({
    availableCpu: 0,
    availableMemory: '0.00G',
    slots: 0,
    slotsFree: 0,
    phase: 'NOT READY',
  });
});

const at = (type: string, status: string, reason = '', message = '') => ({ type, status, reason, message });
const FULL = at('DiskPressure', 'True', 'DiskNearlyFull', 'The disk of the host is nearly full');
const BROKEN = at('berth.dev/NATReady', 'False', 'SelfHealFailed', 'A rule drops packets');
const [READY, SILENT] = [at('Ready', 'True'), at('Ready', 'Unknown', 'NodeStatusUnknown', 'stopped')];
const OURS = [
  { key: 'berth.dev/host', effect: 'NoSchedule' },
  { key: 'berth.node-restriction.kubernetes.io/namespace', effect: 'NoSchedule' },
];
const OFF = { 'berth.dev/cordoned-for': 'tower' };

/** Parts of a Node, and why its host takes no VMs. */
interface Case {
  annotations?: Record<string, string>;
  spec?: HostNode['spec'];
  conditions: ReturnType<typeof at>[];
  causes: { reason?: string; message?: string };
}

const cause = (reason: string, message: string) => ({ reason, message });
const silent = cause('HostUnreachable', 'The host does not report');
const cordoned = cause('Cordoned', 'An administrator has cordoned the host');
const off = cause('SwitchedOff', 'The Server tower is switched off, or will be soon');
const both = `${FULL.message}. ${BROKEN.message}`;
const OTHERS = [
  { key: 'slow', effect: 'PreferNoSchedule' },
  { key: 'repair', effect: 'NoExecute' },
];

it.each<[string, Case]>([
  ['takes VMs', { spec: { taints: OURS }, conditions: [READY, { ...FULL, status: 'False' }], causes: {} }],
  ['is silent', { conditions: [SILENT], causes: silent }],
  ['has never reported', { conditions: [], causes: silent }],
  ['says no', { conditions: [at('Ready', 'False', 'Starts', 'Wait')], causes: cause('Starts', 'Wait') }],
  ['is cordoned', { spec: { unschedulable: true }, conditions: [READY], causes: cordoned }],
  ['has a full disk', { conditions: [READY, FULL], causes: cause('DiskNearlyFull', FULL.message) }],
  ['has no network either', { conditions: [READY, FULL, BROKEN], causes: cause('DiskNearlyFull', both) }],
  ['is off', { annotations: OFF, spec: { unschedulable: true }, conditions: [SILENT], causes: off }],
  [
    'is tainted',
    {
      spec: { taints: [...OURS, ...OTHERS] },
      conditions: [READY],
      causes: cause('Tainted', 'The host has the taint repair'),
    },
  ],
])('says why a host takes no VMs: it %s', (_, { annotations = {}, spec = {}, conditions, causes }) => {
  const metadata = { ...NODE.metadata, annotations };
  const { reason, message } = nodeItem({ metadata, spec, status: { ...NODE.status, conditions } }, [], 'ns');
  expect({ reason, message }).toEqual(causes);
});

it.each(['1e100', 'much', '9223372036854775807', '99999999999999999999E', '-5'])(
  'shows a host that writes the quantity %s in its own status',
  (quantity) => {
    const allocatable = { cpu: quantity, memory: quantity, 'berth.dev/slot': quantity };
    const item = nodeItem({ ...NODE, status: { allocatable } }, [], 'platform-ci');
    expect(nodeItemSchema.safeParse(item).error).toBeUndefined();
    expect(Math.min(item.allocatableCpu, item.slots, item.slotsFree)).toBeGreaterThanOrEqual(0);
  },
);
