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
import { keyOf, type KubeObject, type Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { type EmulatorControllerOptions, EmulatorReconciler } from './controller.ts';

const NOW = Date.parse('2030-01-01T00:10:00Z');

function informer(...objects: KubeObject[]) {
  const get = (key: string) => objects.find((object) => keyOf(object) === key);
  const cache = { get, list: () => objects, byIndex: () => [], resourceVersion: '1' };
  return { cache, readSince: 0, cutIfStale: () => undefined };
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

/** Reconciles an Emulator at the end of its time limit. Its Pod is PENDING in the cache, and `current` in the API server. */
async function statusAtDeadline(current: Pod): Promise<Emulator['status']> {
  const apiVersion = 'berth.dev/v1alpha1';
  const owner = { apiVersion, kind: 'VM', name: 'desk', uid: 'vm' };
  const identity = { namespace: 'ci', name: 'pixel', uid: 'emulator', finalizers: [VM_FINALIZER] };
  const emulator: Emulator = {
    apiVersion,
    kind: 'Emulator',
    metadata: { ...identity, ownerReferences: [owner] },
    spec: { vmName: 'desk' },
    status: { phase: 'Scheduled' },
  };
  const metadata = { namespace: 'ci', name: 'desk', uid: 'vm' };
  const vm = { apiVersion, kind: 'VM', metadata, spec: {}, status: { phase: 'Running' } };
  const options = {
    client: {
      get: async () => current,
      mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: Emulator) => {
        emulator.status = { ...emulator.status, ...status };
        return emulator;
      },
    },
    emulators: informer(emulator),
    emulatorPods: informer(PENDING),
    vms: informer(vm),
    pods: informer(VM_POD),
    taskPods: informer(),
    nodes: informer({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'rack' } }),
    consistency: new Consistency(),
    recorder: { event: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => NOW,
  } as unknown as EmulatorControllerOptions;
  await new EmulatorReconciler(options).reconcile('ci/pixel', { logger: pino({ level: 'silent' }) });
  return emulator.status;
}

it('an emulator that runs does not fail with DeployTimeout because the cache lags', async () => {
  const { phase, failure } = (await statusAtDeadline(RUNNING)) ?? {};
  expect([phase, failure]).toEqual(['Running', undefined]);
});

it('an emulator that does not run in time fails', async () => {
  expect((await statusAtDeadline(PENDING))?.failure?.reason).toBe('DeployTimeout');
});
