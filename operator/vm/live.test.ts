import { pino } from 'pino';
import { expect, it } from 'vitest';
import { MACHINE_CONTAINER, VM_FINALIZER, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { keyOf, type KubeObject, type Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { VMReconciler, type VMControllerOptions } from './controller.ts';

const NOW = Date.parse('2030-01-01T00:10:00Z');
const BOUND = '2030-01-01T00:00:00Z';

function informer(...objects: KubeObject[]) {
  const get = (key: string) => objects.find((object) => keyOf(object) === key);
  const cache = { get, list: () => objects, byIndex: () => [], resourceVersion: '1' };
  return { cache, readSince: 0, cutIfStale: () => undefined };
}

function podWith(resourceVersion: string, status: Pod['status']): Pod {
  const metadata = {
    namespace: 'ci',
    name: 'x',
    uid: 'pod',
    labels: { [VM_UID_LABEL]: 'vm' },
    resourceVersion,
  };
  const spec = { nodeName: 'rack', containers: [] };
  return { apiVersion: 'v1', kind: 'Pod', metadata, spec, status: { startTime: BOUND, ...status } };
}

const PENDING = podWith('1', { phase: 'Pending' });
const CONTAINER = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: true, restartCount: 0 };
const state = { running: { startedAt: '2030-01-01T00:00:05Z' } };
const RUNNING = podWith('2', { phase: 'Running', containerStatuses: [{ ...CONTAINER, state }] });

/** Reconciles a VM at the end of its time limit. Its Pod is PENDING in the cache, and `current` in the API server. */
async function statusAtDeadline(current: Pod): Promise<VM['status']> {
  const vm = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'x', namespace: 'ci', uid: 'vm', finalizers: [VM_FINALIZER] },
    spec: { image: 'registry.example/guest:1' },
    status: { phase: 'Scheduled' },
  } as VM;
  const node: Node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'rack' } };
  const namespace = {
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name: 'kube-system', uid: 'cluster' },
  };
  const options = {
    client: {
      get: async () => current,
      mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: VM) => {
        vm.status = { ...vm.status, ...status };
        return vm;
      },
    },
    vms: informer(vm),
    pods: informer(PENDING),
    nodes: informer(node),
    vmConfigs: informer(),
    images: informer(),
    isos: informer(),
    namespaces: informer(namespace),
    consistency: new Consistency(),
    recorder: { event: () => undefined },
    metrics: { observe: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => NOW,
  } as unknown as VMControllerOptions;
  await new VMReconciler(options).reconcile('ci/x', { logger: pino({ level: 'silent' }) });
  return vm.status;
}

it('a VM whose machine runs does not fail with DeployTimeout because the cache lags', async () => {
  const { phase, failure } = (await statusAtDeadline(RUNNING)) ?? {};
  expect([phase, failure]).toEqual(['Running', undefined]);
});

it('a VM whose machine does not run in time fails', async () => {
  expect((await statusAtDeadline(PENDING))?.failure?.reason).toBe('DeployTimeout');
});
