import { pino } from 'pino';
import { afterEach, expect, it, vi } from 'vitest';
import { VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Consistency } from '../../kube/consistency.ts';
import { waitAfter } from '../../base/backoff.ts';
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

interface Server {
  /** Returns the answer to the request for a Pod. The argument is the number of this request. */
  readonly refusal?: (attempt: number) => ApiError;
  /** Returns the answer to every other request that changes the VM, but not its status. The request succeeds if it is undefined. */
  readonly failure?: () => ApiError | undefined;
}

/**
 * Reconciles a new VM during this number of seconds, at the times at which the operator would do so. The API server refuses the VM's Pod.
 * Returns the seconds at which the operator requested the Pod, the VM's conditions, and the seconds at which the operator stored a status.
 */
async function refusedFor(seconds: number, { refusal, failure }: Server) {
  const vm = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: {
      name: 'x',
      namespace: 'ci',
      uid: 'vm',
      finalizers: failure === undefined ? [VM_FINALIZER] : [],
    },
    spec: { image: 'registry.example/guest:1' },
  } as VM;
  const attempts: number[] = [];
  let now = BEGIN;
  const stored: number[] = [];
  let failures = 0;
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
        throw refusal?.(attempts.length) ?? new Error('no answer');
      }
      return { metadata: { name: 'x' } };
    },
    mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: VM) => {
      const failed = status === undefined ? failure?.() : undefined;
      if (failed !== undefined) {
        throw failed;
      }
      stored.push((now - BEGIN) / 1000);
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
    servers: informer(),
    vmConfigs: informer(),
    images: informer(),
    isos: informer(),
    snapshots: informer(),
    namespaces: informer({ metadata: { name: 'kube-system', uid: 'cluster' } }),
    consistency: new Consistency(),
    hostRecords: { isGivenUp: () => false, missingSince: () => undefined },
    recorder: { event: () => undefined },
    metrics: { observe: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => now,
  } as unknown as VMControllerOptions;
  const reconciler = new VMReconciler(options);
  while (now < BEGIN + seconds * 1000) {
    isChanged = false;
    const wait = await reconciler.reconcile('ci/x', { logger: pino({ level: 'silent' }) }).then(
      (result) => {
        failures = 0;
        return result?.requeueAfterMilliseconds ?? Number.POSITIVE_INFINITY;
      },
      () => {
        failures += 1;
        return waitAfter(failures, 5, 60_000);
      },
    );
    now += isChanged ? 0 : wait;
  }
  return { attempts, stored, conditions: vm.status?.conditions ?? [] };
}

async function attemptsWithin(seconds: number): Promise<number[]> {
  const refusal = () => new ApiError(QUOTA, { reason: 'Forbidden', status: 403 });
  return (await refusedFor(seconds, { refusal })).attempts;
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
  const { attempts, conditions } = await refusedFor(240, {
    refusal: (attempt) => new ApiError(message(attempt), { reason: 'InternalError', status: 500 }),
  });
  expect(conditions.find(({ type }) => type === 'Scheduled')).toMatchObject({
    status: 'False',
    reason: 'PodRefused',
    message: expect.stringContaining('failed calling webhook "policy.example"'),
  });
  expect(attempts.filter((second) => second > 1).map(Math.floor)).toEqual([10, 21, 42, 84, 144, 204]);
});

const SCOPES =
  'pods "x" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [system-node-critical]}]';
const unknown = (attempt: number) => new ApiError(`${SCOPES} (${attempt})`, { reason: '', status: 500 });

it('a VM tells an error without a reason within 5 s if it lasts, and its Pod is requested again at least once a minute', async () => {
  const { attempts, stored, conditions } = await refusedFor(240, { refusal: unknown });
  const reported = { status: 'False', reason: 'PodRefused', message: expect.stringContaining(SCOPES) };
  expect(conditions.filter(({ type }) => ['Scheduled', 'Ready'].includes(type))).toEqual([
    expect.objectContaining(reported),
    expect.objectContaining(reported),
  ]);
  expect(stored).toEqual([expect.closeTo(2.6, 0)]);
  expect(stored[0]).toBeLessThan(5);
  expect(
    attempts
      .slice(1)
      .map((second, index) => second - (attempts[index] ?? 0))
      .every((wait) => wait <= 60),
  ).toBe(true);
});

it('a VM does not tell an error without a reason that ends within a second', async () => {
  const { stored } = await refusedFor(1, { refusal: unknown });
  expect(stored).toEqual([]);
});

it('a VM tells that the API server does not accept its finalizer', async () => {
  const failure = () => new ApiError('admission is away', { reason: '', status: 500 });
  const { attempts, conditions } = await refusedFor(5, { failure });
  expect(attempts).toEqual([]);
  expect(conditions.find(({ type }) => type === 'Scheduled')).toMatchObject({
    reason: 'PodRefused',
    message: 'admission is away',
  });
});
