import { pino } from 'pino';
import { expect, it } from 'vitest';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import {
  EMULATOR_UID_LABEL,
  MACHINE_CONTAINER,
  VM_FINALIZER,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Pod, PodStatus } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { keyOf, type KubeObject, type Ref, type Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { type EmulatorControllerOptions, EmulatorReconciler } from './controller.ts';

const NOW = Date.parse('2030-01-01T00:10:00Z');

function informer(...objects: KubeObject[]) {
  const get = (key: string) => objects.find((object) => keyOf(object) === key);
  const cache = { get, list: () => objects, byIndex: () => [], resourceVersion: '1' };
  return { cache, readSince: 0, cutIfStale: () => undefined };
}

/** Returns options of a reconciler with these parts. By default, the caches have one host and nothing else. */
function optionsWith(parts: object): EmulatorControllerOptions {
  return {
    vms: informer(),
    pods: informer(),
    taskPods: informer(),
    nodes: informer({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'rack' } }),
    servers: informer(),
    consistency: new Consistency(),
    hostRecords: { isGivenUp: () => false, missingSince: () => undefined },
    recorder: { event: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => NOW,
    ...parts,
  } as unknown as EmulatorControllerOptions;
}

function podOf(name: string, labels: Record<string, string>, status: PodStatus): Pod {
  const metadata = { namespace: 'ci', name, uid: name, labels, resourceVersion: '1' };
  const spec = { nodeName: 'rack', containers: [] };
  return { apiVersion: 'v1', kind: 'Pod', metadata, spec, status };
}

const STARTED = '2030-01-01T00:00:00Z';
const CONTAINER = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: true, restartCount: 0 };
const VM_POD = podOf('desk', { [VM_UID_LABEL]: 'vm' }, { phase: 'Running' });
const emulatorPod = (status: PodStatus) =>
  podOf('pixel.emulator', { [EMULATOR_UID_LABEL]: 'emulator' }, { startTime: STARTED, ...status });
const PENDING = emulatorPod({ phase: 'Pending' });
const state = { running: { startedAt: STARTED } };
const RUNNING = emulatorPod({ phase: 'Running', containerStatuses: [{ ...CONTAINER, state }] });

interface DeleteOptions {
  readonly gracePeriodSeconds?: number;
}

interface World {
  readonly pod: Pod;
  readonly vmPhase: string;
}

/**
 * Reconciles an Emulator at the end of its time limit. The caches show `cached`, and the API server has `current`. Returns the status, and
 * the kinds of the objects that the operator deletes.
 */
async function reconcile(cached: World, current: World, whenVMStops: 'Stop' | 'Delete' = 'Stop') {
  const apiVersion = 'berth.dev/v1alpha1';
  const owner = { apiVersion, kind: 'VM', name: 'desk', uid: 'vm' };
  const identity = { namespace: 'ci', name: 'pixel', uid: 'emulator', finalizers: [VM_FINALIZER] };
  const emulator: Emulator = {
    apiVersion,
    kind: 'Emulator',
    metadata: { ...identity, ownerReferences: [owner] },
    spec: { vmName: 'desk', whenVMStops },
    status: { phase: 'Scheduled' },
  };
  const metadata = { namespace: 'ci', name: 'desk', uid: 'vm' };
  const vm = ({ vmPhase: phase }: World) => ({
    apiVersion,
    kind: 'VM',
    metadata,
    spec: {},
    status: { phase },
  });
  const deleted: string[] = [];
  const options = optionsWith({
    client: {
      get: async ({ kind }: Resource<KubeObject>, { name }: Ref) =>
        kind === 'VM' ? vm(current) : name === 'desk' ? VM_POD : current.pod,
      delete: async ({ kind }: Resource<KubeObject>) => {
        deleted.push(kind);
      },
      mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: Emulator) => {
        emulator.status = { ...emulator.status, ...status };
        return emulator;
      },
    },
    emulators: informer(emulator),
    emulatorPods: informer(cached.pod),
    vms: informer(vm(cached)),
    pods: informer(VM_POD),
  });
  await new EmulatorReconciler(options).reconcile('ci/pixel', { logger: pino({ level: 'silent' }) });
  return { status: emulator.status, deleted };
}

const STARTING: World = { pod: PENDING, vmPhase: 'Running' };
const STARTED_UP: World = { pod: RUNNING, vmPhase: 'Running' };

it('an emulator that runs does not fail with DeployTimeout because the cache lags', async () => {
  const { phase, failure } = (await reconcile(STARTING, STARTED_UP)).status ?? {};
  expect([phase, failure]).toEqual(['Running', undefined]);
});

it('an emulator that does not run in time fails', async () => {
  expect((await reconcile(STARTING, STARTING)).status?.failure?.reason).toBe('DeployTimeout');
});

it.each(['Stop', 'Delete'] as const)(
  'the emulator of a VM that runs stays if the cache lags (%s)',
  async (end) => {
    const behind = { ...STARTED_UP, vmPhase: 'Pending' };
    const { status, deleted } = await reconcile(behind, STARTED_UP, end);
    expect([status?.phase, deleted]).toEqual(['Running', []]);
  },
);

it.each([
  ['Stop', 'Pod'],
  ['Delete', 'Emulator'],
] as const)('the emulator of a stopped VM ends (%s)', async (end, kind) => {
  const stopped = { ...STARTED_UP, vmPhase: 'Stopped' };
  expect((await reconcile(stopped, stopped, end)).deleted).toEqual([kind]);
});

it('an Emulator tells once that the API server refuses the end of its Pod, and its status goes on', async () => {
  const failure = 'Internal error occurred: failed calling webhook "policy.example": connection refused';
  const apiVersion = 'berth.dev/v1alpha1';
  const identity = { namespace: 'ci', name: 'pixel', uid: 'emulator', finalizers: [VM_FINALIZER] };
  const emulator: Emulator = {
    apiVersion,
    kind: 'Emulator',
    metadata: { ...identity, deletionTimestamp: STARTED },
    spec: { vmName: 'desk', whenVMStops: 'Stop' },
    status: { phase: 'Running' },
  };
  const events: object[] = [];
  let port = 40_000;
  const options = optionsWith({
    client: {
      get: async () => RUNNING,
      delete: async () => {
        port += 1;
        throw new ApiError(`${failure}: 10.0.0.1:${port}`, { reason: 'InternalError', status: 500 });
      },
      mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: Emulator) => {
        emulator.status = { ...emulator.status, ...status };
        return emulator;
      },
    },
    emulators: informer(emulator),
    emulatorPods: informer(RUNNING),
    recorder: { event: (_emulator: Emulator, event: object) => events.push(event) },
  });
  const reconciler = new EmulatorReconciler(options);
  const logger = pino({ level: 'silent' });
  await expect(reconciler.reconcile('ci/pixel', { logger })).rejects.toThrow(failure);
  await expect(reconciler.reconcile('ci/pixel', { logger })).rejects.toThrow(failure);
  const message = `The API server refused a change of the Emulator or its Pod: ${failure}: 10.0.0.1:40001`;
  expect(events).toEqual([{ type: 'Warning', reason: 'PodRefused', action: 'Changing', message }]);
  expect(emulator.status?.conditions).not.toBeUndefined();
});

it.each([
  [false, undefined],
  [true, 0],
])('the Pod of an Emulator that was removed by force ends (host given up: %s)', async (isGivenUp, grace) => {
  const deleted: object[] = [];
  const options = optionsWith({
    client: {
      get: async () => {
        throw new ApiError('emulators "pixel" not found', { reason: 'NotFound', status: 404 });
      },
      delete: async (
        { kind }: Resource<KubeObject>,
        { name }: Ref,
        { gracePeriodSeconds }: DeleteOptions,
      ) => {
        deleted.push({ kind, name, gracePeriodSeconds });
      },
    },
    emulators: informer(),
    emulatorPods: informer(RUNNING),
    hostRecords: { isGivenUp: () => isGivenUp, missingSince: () => undefined },
  });
  await new EmulatorReconciler(options).reconcile('ci/pixel', { logger: pino({ level: 'silent' }) });
  expect(deleted).toEqual([{ kind: 'Pod', name: 'pixel.emulator', gracePeriodSeconds: grace }]);
});
