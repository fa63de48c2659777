import { pino } from 'pino';
import { expect, it } from 'vitest';
import { MACHINE_CONTAINER, VM_FINALIZER, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Pod } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { keyOf, type KubeObject, type Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { VMReconciler, type VMControllerOptions } from './controller.ts';

const FAILURE = 'Internal error occurred: failed calling webhook "policy.example": connection refused';
const NODE = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'rack' } };
const BOUND = '2030-01-01T00:00:00Z';

const failure = (message: string) => new ApiError(message, { reason: 'InternalError', status: 500 });

function informer(...objects: KubeObject[]) {
  const get = (key: string) => objects.find((object) => keyOf(object) === key);
  const cache = { get, list: () => objects, byIndex: () => [], resourceVersion: '1' };
  return { cache, readSince: 0, cutIfStale: () => undefined };
}

/** Returns a VM that must end, because its deployment failed, and the Pod of the VM. */
function failedVM(): { vm: VM; pod: Pod } {
  const status = { phase: 'Scheduled', failure: { reason: 'DeployTimeout', message: 'late', time: BOUND } };
  const metadata = { name: 'x', namespace: 'ci', uid: 'vm', finalizers: [VM_FINALIZER] };
  const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };
  return {
    vm: {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata,
      spec: { image: 'registry.example/guest:1' },
      status,
    },
    pod: {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'x', namespace: 'ci', uid: 'pod', labels: { [VM_UID_LABEL]: 'vm' } },
      spec: { nodeName: 'rack', containers: [] },
      status: { phase: 'Pending', startTime: BOUND, containerStatuses: [container] },
    },
  };
}

/**
 * Returns a reconciler of this VM and Pod. The API server does not accept changes of the Pod while `world.refusal` returns an error. The
 * Events and the stored status of the VM appear in `world`.
 */
function reconcilerOf({ vm, pod }: { vm: VM; pod: Pod }) {
  const world = {
    refusal: (): ApiError | undefined => failure(FAILURE),
    events: [] as { message: string }[],
    stored: undefined as VM['status'],
    vms: [vm],
  };
  const change = async <T>(result: T): Promise<T> => {
    const refused = world.refusal();
    if (refused !== undefined) {
      throw refused;
    }
    return result;
  };
  const get = (key: string) => world.vms.find((object) => keyOf(object) === key);
  const options = {
    client: {
      get: async ({ kind }: Resource<KubeObject>) => (kind === 'VM' ? vm : kind === 'Pod' ? pod : NODE),
      delete: async () => await change(undefined),
      mergePatch: async ({ kind }: Resource<KubeObject>, _ref: object, { status }: VM) => {
        if (kind === 'Pod') {
          return await change(pod);
        }
        world.stored = status;
        return vm;
      },
    },
    vms: { ...informer(), cache: { ...informer().cache, get } },
    pods: informer(pod),
    nodes: informer(NODE),
    servers: informer(),
    vmConfigs: informer(),
    images: informer(),
    isos: informer(),
    snapshots: informer(),
    namespaces: informer({
      apiVersion: 'v1',
      kind: 'Namespace',
      metadata: { name: 'kube-system', uid: 'cluster' },
    }),
    consistency: new Consistency(),
    hostRecords: { isGivenUp: () => false, missingSince: () => undefined },
    recorder: { event: (_vm: VM, event: { message: string }) => world.events.push(event) },
    metrics: { observe: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => Date.parse(BOUND),
  } as unknown as VMControllerOptions;
  const reconciler = new VMReconciler(options);
  const reconcile = async () => await reconciler.reconcile('ci/x', { logger: pino({ level: 'silent' }) });
  const refusals = () => world.events.filter(({ message }) => message.includes('refused a change'));
  return { world, reconcile, refusals };
}

it('a webhook that cannot be called during the end of a Pod is told, and does not stop the status', async () => {
  const { world, reconcile } = reconcilerOf(failedVM());
  await expect(reconcile()).rejects.toThrow(FAILURE);
  expect(world.stored?.phase).toBe('Stopping');
  expect(world.events).toContainEqual(
    expect.objectContaining({
      type: 'Warning',
      reason: 'PodRefused',
      message: expect.stringContaining(FAILURE),
    }),
  );
});

it('a refused change is told once while only the ports in the words of the API server change', async () => {
  const { world, reconcile, refusals } = reconcilerOf(failedVM());
  for (const port of [40_001, 40_002, 40_003]) {
    world.refusal = () => failure(`${FAILURE}: 10.0.0.1:${port}`);
    await expect(reconcile()).rejects.toThrow(FAILURE);
  }
  expect(refusals()).toHaveLength(1);
});

it('a refused change is told again after a success, and for the next VM of the same name', async () => {
  const { world, reconcile, refusals } = reconcilerOf(failedVM());
  await expect(reconcile()).rejects.toThrow(FAILURE);
  world.refusal = () => undefined;
  await reconcile();
  world.refusal = () => failure(FAILURE);
  await expect(reconcile()).rejects.toThrow(FAILURE);
  expect(refusals()).toHaveLength(2);
  const before = world.vms;
  world.vms = [];
  await reconcile();
  world.vms = before;
  await expect(reconcile()).rejects.toThrow(FAILURE);
  expect(refusals()).toHaveLength(3);
});

it('a refused end of the Pod is told and tried again if only another program holds the VM', async () => {
  const { vm, pod } = failedVM();
  const metadata = { ...vm.metadata, deletionTimestamp: BOUND, finalizers: ['example.com/other'] };
  const { reconcile, refusals } = reconcilerOf({ vm: { ...vm, metadata }, pod });
  await expect(reconcile()).rejects.toThrow(FAILURE);
  expect(refusals()).toHaveLength(1);
});

it('a webhook that cannot be called does not count as a refusal of the size', async () => {
  const { vm, pod } = failedVM();
  const requests = { cpu: '1', memory: '2Gi' };
  const containers = [{ name: MACHINE_CONTAINER, image: '', resources: { requests } }];
  const { world, reconcile, refusals } = reconcilerOf({
    vm: { ...vm, spec: { ...vm.spec, cpu: 2 }, status: { phase: 'Scheduled' } },
    pod: { ...pod, spec: { ...pod.spec, containers } },
  });
  await expect(reconcile()).rejects.toThrow(FAILURE);
  expect(refusals()).toHaveLength(1);
  expect(JSON.stringify(world.stored)).not.toContain('ResizeRefused');
});

it('Kubernetes 1.33 refuses a smaller memory limit: the VM has its words, and the Pod keeps its size', async () => {
  const expected =
    'Pod "x" is invalid: spec.containers[0].resources.limits[memory]: Forbidden: memory limits cannot be decreased unless resizePolicy is RestartContainer';
  const { vm, pod } = failedVM();
  const requests = { cpu: '2', memory: '2176Mi' };
  const containers = [{ name: MACHINE_CONTAINER, image: '', resources: { requests, limits: requests } }];
  const { world, reconcile } = reconcilerOf({
    vm: { ...vm, spec: { ...vm.spec, cpu: 1, memory: '1Gi' }, status: { phase: 'Scheduled' } },
    pod: { ...pod, spec: { ...pod.spec, containers } },
  });
  world.refusal = () => new ApiError(expected, { reason: 'Invalid', status: 422 });
  await reconcile().catch(() => undefined);
  expect(world.stored?.conditions?.find(({ type }) => type === 'RestartRequired')).toMatchObject({
    status: 'True',
    reason: 'ResizeRefused',
    message: expect.stringContaining(`cpu 1, memory 1Gi was refused: ${expected}`),
  });
});
