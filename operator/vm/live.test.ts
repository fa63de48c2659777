import { pino } from 'pino';
import { expect, it } from 'vitest';
import { MACHINE_CONTAINER, VM_FINALIZER, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Node, Pod } from '../../kube/core.ts';
import type { Result } from '../../kube/controller.ts';
import { ApiError } from '../../kube/errors.ts';
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

function vmWith(resourceVersion: string, status?: VM['status']): VM {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'x', namespace: 'ci', uid: 'vm', finalizers: [VM_FINALIZER], resourceVersion },
    spec: { image: 'registry.example/guest:1' },
    ...(status && { status }),
  };
}

/** Returns the options of a reconciler whose caches contain the VM and these Pods. */
function optionsOf(client: object, vm: VM, ...pods: Pod[]): VMControllerOptions {
  const node: Node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'rack' } };
  const namespace = {
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name: 'kube-system', uid: 'cluster' },
  };
  return {
    client,
    vms: informer(vm),
    pods: informer(...pods),
    nodes: informer(node),
    servers: informer(),
    vmConfigs: informer(),
    images: informer(),
    isos: informer(),
    snapshots: informer(),
    namespaces: informer(namespace),
    consistency: new Consistency(),
    hostRecords: { isGivenUp: () => false, missingSince: () => undefined },
    recorder: { event: () => undefined },
    metrics: { observe: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => NOW,
  } as unknown as VMControllerOptions;
}

async function reconcile(options: VMControllerOptions): Promise<Result> {
  return await new VMReconciler(options).reconcile('ci/x', { logger: pino({ level: 'silent' }) });
}

/** Reconciles a VM at the end of its time limit. Its Pod is PENDING in the cache, and `current` in the API server. */
async function statusAtDeadline(current: Pod): Promise<VM['status']> {
  const vm = vmWith('1', { phase: 'Scheduled' });
  const client = {
    get: async () => current,
    mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: VM) => {
      vm.status = { ...vm.status, ...status };
      return vm;
    },
  };
  await reconcile(optionsOf(client, vm, PENDING));
  return vm.status;
}

it('a VM whose machine runs does not fail with DeployTimeout because the cache lags', async () => {
  const { phase, failure } = (await statusAtDeadline(RUNNING)) ?? {};
  expect([phase, failure]).toEqual(['Running', undefined]);
});

it('a VM whose machine does not run in time fails', async () => {
  expect((await statusAtDeadline(PENDING))?.failure?.reason).toBe('DeployTimeout');
});

/** Reconciles a VM without a Pod. Returns the kinds that were created, whether the key is ready afterwards, and the result. */
async function deploy(cached: VM, current: VM) {
  const created: string[] = [];
  const client = {
    get: async (type: Resource<KubeObject>) => {
      if (type.kind === 'VM') {
        return current;
      }
      throw new ApiError(`no ${type.kind}`, { reason: 'NotFound', status: 404 });
    },
    create: async (type: Resource<KubeObject>, object: KubeObject) => {
      created.push(type.kind);
      return { ...object, metadata: { ...object.metadata, resourceVersion: '1' } };
    },
    mergePatch: async () => cached,
  };
  const options = optionsOf(client, cached);
  const result = await reconcile(options);
  return { created, isReady: options.consistency.ready('ci/x'), result };
}

it('a new leader creates no Pod for a VM that has failed, although its cache does not show the failure', async () => {
  const failure = { reason: 'DeployTimeout', message: '', time: BOUND };
  expect(await deploy(vmWith('1'), vmWith('2', { failure }))).toEqual({
    created: [],
    isReady: false,
    result: { requeueAfterMilliseconds: 0 },
  });
});

it('a VM gets its Pod if the cache shows its current state', async () => {
  expect((await deploy(vmWith('1'), vmWith('1'))).created).toEqual(['Pod']);
});
