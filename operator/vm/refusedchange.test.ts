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
const BOUND = '2030-01-01T00:00:00Z';

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

it('a webhook that cannot be called during the end of a Pod is told, and does not stop the status', async () => {
  const { vm, pod } = failedVM();
  const events: object[] = [];
  let stored: VM['status'];
  const options = {
    client: {
      delete: async () => {
        throw new ApiError(FAILURE, { reason: 'InternalError', status: 500 });
      },
      mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: VM) => {
        stored = status;
        return vm;
      },
    },
    vms: informer(vm),
    pods: informer(pod),
    nodes: informer({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'rack' } }),
    vmConfigs: informer(),
    images: informer(),
    isos: informer(),
    namespaces: informer({
      apiVersion: 'v1',
      kind: 'Namespace',
      metadata: { name: 'kube-system', uid: 'cluster' },
    }),
    consistency: new Consistency(),
    recorder: { event: (_vm: VM, event: object) => events.push(event) },
    metrics: { observe: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => Date.parse(BOUND),
  } as unknown as VMControllerOptions;
  const logger = pino({ level: 'silent' });
  await expect(new VMReconciler(options).reconcile('ci/x', { logger })).rejects.toThrow(FAILURE);
  expect(stored?.phase).toBe('Stopping');
  expect(events).toContainEqual(
    expect.objectContaining({
      type: 'Warning',
      reason: 'PodRefused',
      message: expect.stringContaining(FAILURE),
    }),
  );
});
