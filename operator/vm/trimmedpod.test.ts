import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import {
  DISK_CONDITION,
  HOST_DISK_FULL,
  HOST_MARK,
  HOST_VALUE,
  LAYERS_CONDITION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  NAT_TAINT,
  NETWORK_CONDITION,
  NO_ROOM_TO_SUSPEND,
  WARM_START_CONDITION,
} from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { ContainerState, Node, Pod, PodCondition } from '../../kube/core.ts';
import { reachOfNode, UNBOUND } from '../host/observe.ts';
import { parseConfig } from '../config/config.ts';
import { macAddressOf, toRemember } from './abandoned.ts';
import { untilNextDeadline } from './deadlines.ts';
import { gatherFacts, lostPlacement } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { buildPod } from './pod.ts';
import { podCondition, podPorts, trimPod } from '../podbacked/pod.ts';
import { isUnresolved, resolve } from './resolve.ts';
import { resizedContainers } from './size.ts';
import { summarize } from './status.ts';
import { stepsFor } from './steps.ts';

const none = () => undefined;

const config = parseConfig({}, 'test');
const TIME = '2030-01-01T00:00:00Z';
const NOW = Date.parse('2030-01-01T01:00:00Z');
const VIRTUAL_MACHINE: VM = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { name: 'x', namespace: 'platform-ci', uid: 'vm', generation: 1, creationTimestamp: TIME },
  spec: {
    image: 'registry.example/guest:1',
    ports: ['8822:22'],
    userDataSecretRef: { name: 'data', key: 'user' },
  },
};

/** Host with taints that the Pod does not tolerate. */
const TAINTED: Node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'host', uid: 'host', labels: { [HOST_MARK]: HOST_VALUE } },
  spec: {
    taints: [
      { key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' },
      { key: NAT_TAINT, value: 'true', effect: 'NoSchedule' },
    ],
  },
  status: { conditions: [{ type: 'Ready', status: 'True' }] },
};
const SILENT: Node = {
  ...TAINTED,
  status: { conditions: [{ type: 'Ready', status: 'Unknown', lastTransitionTime: TIME }] },
};

const ENDS: ContainerState[] = [
  { terminated: { exitCode: 1, reason: 'PortTaken', message: 'port 8822', startedAt: undefined } },
  { terminated: { exitCode: 1, reason: 'Crashed', message: '', startedAt: TIME } },
] as ContainerState[];
const STATES: ContainerState[] = [
  { waiting: { reason: 'Pulling', message: '40 %' } },
  { waiting: { reason: 'ImageNotFound', message: 'no' } },
  { waiting: { reason: 'Stopped', message: '' } },
  { running: { startedAt: TIME } },
  ...ENDS,
];
const REPORT = {
  cpu: 2,
  memoryBytes: 1024 ** 3,
  imageDigest: `sha256:${'a'.repeat(64)}`,
  restartedAt: TIME,
  progressPercent: 4,
  guestAgentConnected: true,
};

function condition(type: string, ...reasons: string[]): fc.Arbitrary<PodCondition> {
  const fields = {
    type: fc.constant(type),
    status: fc.constantFrom('True' as const, 'False' as const),
    reason: fc.constantFrom(...reasons),
    message: fc.constantFrom(
      JSON.stringify(REPORT),
      '0/2 nodes are available: 2 node(s) had untolerated taint(s).',
      '0/1 nodes are available: 1 node(s) had free ports.',
    ),
    lastTransitionTime: fc.constant(TIME),
  };
  return fc.record(fields);
}

const CONDITIONS = fc.tuple(
  condition('PodScheduled', 'Unschedulable'),
  condition(MACHINE_CONDITION, 'Running', 'Starting', 'GuestShutdown'),
  condition(DISK_CONDITION, HOST_DISK_FULL, NO_ROOM_TO_SUSPEND),
  condition(NETWORK_CONDITION, 'Ready'),
  condition(WARM_START_CONDITION, 'Renewed', 'KeyDiffers'),
  condition(LAYERS_CONDITION, 'LayersNotMerged'),
  condition('Ready', 'NotReady'),
  condition('DisruptionTarget', 'EvictionByEvictionAPI'),
  condition('PodResizePending', 'Deferred', 'Infeasible'),
);

const POD = fc.record({
  isBound: fc.boolean(),
  isDeleted: fc.boolean(),
  hasRunBefore: fc.boolean(),
  node: fc.constantFrom(undefined, TAINTED, SILENT),
  phase: fc.constantFrom('Pending' as const, 'Running' as const, 'Failed' as const),
  state: fc.constantFrom(...STATES),
  conditions: CONDITIONS.chain((all) => fc.subarray(all)),
});
type Sample = typeof POD extends fc.Arbitrary<infer T> ? T : never;

const WORLD = {
  nameTakenBy: undefined,
  resizeRefused: undefined,
  snapshots: [],
  lookups: { vmConfig: none, image: none, iso: none, credentials: none },
  portHolder: () => 'platform-qa/other',
  hosts: () => [TAINTED],
  startingHosts: () => [],
  isDedicated: () => false,
  config,
  now: NOW,
  clusterUid: 'cluster',
  random: () => 'ab'.repeat(32),
};

/** Returns the Pod as the API server stores it, with all fields that scheduler and agent write. */
function podOf({ isBound, isDeleted, phase, state, conditions }: Sample): Pod {
  const resolved = resolve({ ...WORLD, vm: VIRTUAL_MACHINE });
  if (isUnresolved(resolved)) {
    throw new Error(resolved.message);
  }
  const built = buildPod({
    ...WORLD,
    vm: VIRTUAL_MACHINE,
    resolved,
    attempt: 1,
    avoidedNodes: [],
    isDedicated: false,
  });
  const { resources } = built.spec.containers[0] ?? {};
  const container = {
    name: MACHINE_CONTAINER,
    image: 'registry.example/guest:1',
    imageID: `registry.example/guest@sha256:${'b'.repeat(64)}`,
    containerID: 'berth://1',
    ready: true,
    restartCount: 0,
    state,
    resources,
    allocatedResources: resources?.requests,
  };
  return {
    ...built,
    metadata: { ...built.metadata, uid: 'pod', ...(isDeleted && { deletionTimestamp: TIME }) },
    spec: { ...built.spec, ...(isBound && { nodeName: 'host' }) },
    status: {
      phase,
      conditions,
      hostIP: '10.0.0.1',
      podIPs: [{ ip: '10.0.0.2' }],
      containerStatuses: [container],
    },
  } as unknown as Pod;
}

/** Returns all results that the operator derives from a Pod. */
function readings(pod: Pod, { node, isBound, hasRunBefore }: Sample) {
  const status = { attempt: 1, nodeName: 'host', ...(hasRunBefore && { firstRunningTime: TIME }) };
  const spec = { ...VIRTUAL_MACHINE.spec, cpu: 3, ttlSecondsAfterFinished: 60 };
  const vm = { ...VIRTUAL_MACHINE, spec, status };
  const reach = isBound && node !== undefined ? reachOfNode(node) : UNBOUND;
  const observed: ObservedVM = { ...WORLD, ...reach, vm, pod, successor: undefined };
  const facts = gatherFacts(observed);
  const deleted = { ...vm, metadata: { ...vm.metadata, deletionTimestamp: TIME } };
  return {
    facts,
    status: summarize(observed, facts, {}),
    lost: lostPlacement(observed, { attempt: 2 }),
    steps: [observed, { ...observed, vm: deleted }].map((one) =>
      stepsFor(one).map((step) => step(one, facts)),
    ),
    wait: untilNextDeadline(observed, facts),
    remembered: [macAddressOf(pod), toRemember(observed, pod)],
    resized: resizedContainers(pod, { cpu: 4, memoryBytes: 1n }),
    ports: podPorts(pod),
  };
}

it('the operator derives the same from a Pod and from the Pod in its cache', () => {
  const property = fc.property(POD, (sample) => {
    const pod = podOf(sample);
    expect(readings(trimPod(pod), sample)).toEqual(readings(pod, sample));
  });
  fc.assert(property, { numRuns: 1000 });
});

it('a bound Pod is kept without the parts that only its scheduler and its host need', () => {
  const sample = { isDeleted: false, hasRunBefore: true, node: TAINTED, conditions: [] };
  const pod = podOf({ ...sample, isBound: true, phase: 'Running', state: { running: { startedAt: TIME } } });
  const { spec, status } = trimPod(pod);
  const lost = Object.keys(pod.spec).filter((field) => !Object.hasOwn(spec, field));
  expect(lost.toSorted()).toEqual(['affinity', 'tolerations', 'volumes']);
  expect(status?.containerStatuses?.[0]).not.toHaveProperty('resources');
  expect(status?.containerStatuses?.[0]).not.toHaveProperty('allocatedResources');
});

it('a condition with a status that Kubernetes does not have counts as Unknown', () => {
  const pod = { status: { conditions: [{ type: 'Ready', status: 'maybe' }] } } as unknown as Pod;
  expect(podCondition(pod, 'Ready')).toEqual({ type: 'Ready', status: 'Unknown' });
});

it('of a status with megabytes, which only a hostile host writes, only the phase is kept', () => {
  const message = 'a'.repeat(1_000_000);
  const terminated = { exitCode: 1, reason: 'MachineFailed', message };
  const status = { phase: 'Failed', containerStatuses: [{ name: MACHINE_CONTAINER, state: { terminated } }] };
  const pod = { metadata: { name: 'x' }, spec: { nodeName: 'host', containers: [] }, status };
  expect(trimPod(pod as unknown as Pod).status).toEqual({ phase: 'Failed' });
});

it('the ports of a VM are those of its machine, although a webhook has inserted a container before it', () => {
  const sample = { isDeleted: false, hasRunBefore: true, node: TAINTED, conditions: [] };
  const pod = podOf({ ...sample, isBound: true, phase: 'Running', state: {} });
  const proxy = { name: 'proxy', image: '', ports: [{ containerPort: 15090, hostPort: 15090 }] };
  const mutated: Pod = { ...pod, spec: { ...pod.spec, containers: [proxy, ...pod.spec.containers] } };
  expect(podPorts(mutated)).toEqual(['8822/TCP']);
});
