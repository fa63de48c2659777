import { pino } from 'pino';
import { afterEach, expect, it, vi } from 'vitest';
import { VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Consistency } from '../../kube/consistency.ts';
import { ApiError } from '../../kube/errors.ts';
import { keyOf, type KubeObject, type Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { VMReconciler, type VMControllerOptions } from './controller.ts';

const BEGIN = Date.parse('2030-01-01T00:00:00Z');
const QUOTA =
  'pods "x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=9, limited: pods=9';

afterEach(() => {
  vi.restoreAllMocks();
});

/** Returns the part of an informer that the reconciler reads, with these objects in its cache. */
function informer(...objects: object[]) {
  const get = (key: string) => objects.find((object) => keyOf(object as KubeObject) === key);
  const cache = { get, list: () => objects, byIndex: () => [], resourceVersion: '1' };
  return { cache, readSince: 0, cutIfStale: () => false };
}

/**
 * Reconciles a new VM during this number of seconds, at the times at which the operator would do so. The API server refuses the VM's Pod.
 * Returns the seconds at which the operator requested the Pod, and the VM's conditions.
 */
async function refusedFor(seconds: number, refusal: (attempt: number) => ApiError) {
  const vm = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'x', namespace: 'ci', uid: 'vm', finalizers: [VM_FINALIZER] },
    spec: { image: 'registry.example/guest:1' },
  } as VM;
  const attempts: number[] = [];
  let now = BEGIN;
  let isChanged = false;
  const client = {
    get: async (type: Resource<KubeObject>) => {
      if (type.kind === 'VM') {
        return vm;
      }
      throw new ApiError(`no ${type.kind}`, { reason: 'NotFound', status: 404 });
    },
    create: async (type: Resource<KubeObject>) => {
      if (type.kind === 'Pod') {
        attempts.push((now - BEGIN) / 1000);
        throw refusal(attempts.length);
      }
      return { metadata: { name: 'x' } };
    },
    mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: VM) => {
      vm.status = { ...vm.status, ...status };
      isChanged = true;
      return vm;
    },
  };
  const options = {
    client,
    vms: informer(vm),
    pods: informer(),
    nodes: informer(),
    vmConfigs: informer(),
    images: informer(),
    isos: informer(),
    namespaces: informer({ metadata: { name: 'kube-system', uid: 'cluster' } }),
    consistency: new Consistency(),
    recorder: { event: () => undefined },
    metrics: { observe: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => now,
  } as unknown as VMControllerOptions;
  const reconciler = new VMReconciler(options);
  while (now < BEGIN + seconds * 1000) {
    isChanged = false;
    const result = await reconciler.reconcile('ci/x', { logger: pino({ level: 'silent' }) });
    now += isChanged ? 0 : (result?.requeueAfterMilliseconds ?? Number.POSITIVE_INFINITY);
  }
  return { attempts, conditions: vm.status?.conditions ?? [] };
}

async function attemptsWithin(seconds: number): Promise<number[]> {
  const refusal = () => new ApiError(QUOTA, { reason: 'Forbidden', status: 403 });
  return (await refusedFor(seconds, refusal)).attempts;
}

it('a Pod that a quota refuses is requested again soon at first, and later once a minute', async () => {
  vi.spyOn(Math, 'random').mockReturnValue(0);
  const later = (await attemptsWithin(240)).filter((second) => second > 1);
  expect(later.map(Math.floor)).toEqual([10, 21, 42, 84, 144, 204]);
});

it('Pods that were refused together are not requested again together', async () => {
  vi.spyOn(Math, 'random').mockReturnValue(0.5);
  const halfway = (await attemptsWithin(600)).filter((second) => second > 1);
  vi.spyOn(Math, 'random').mockReturnValue(0.1);
  const others = (await attemptsWithin(600)).filter((second) => second > 1);
  expect(others.length).toBeGreaterThan(5);
  expect(others.filter((second) => halfway.includes(second))).toEqual([]);
});

it('a VM tells that a webhook cannot be called, and its Pod is requested again after growing waits', async () => {
  vi.spyOn(Math, 'random').mockReturnValue(0);
  const message = (attempt: number) =>
    `Internal error occurred: failed calling webhook "policy.example": failed to call webhook: Post "https://policy.ns.svc:443/": read tcp 10.0.0.1:${40_000 + attempt}->10.96.0.9:443: read: connection reset by peer`;
  const { attempts, conditions } = await refusedFor(
    240,
    (attempt) => new ApiError(message(attempt), { reason: 'InternalError', status: 500 }),
  );
  expect(conditions.find(({ type }) => type === 'Scheduled')).toMatchObject({
    status: 'False',
    reason: 'PodRefused',
    message: expect.stringContaining('failed calling webhook "policy.example"'),
  });
  expect(attempts.filter((second) => second > 1).map(Math.floor)).toEqual([10, 21, 42, 84, 144, 204]);
});
