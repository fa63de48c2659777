import { expect, it, vi } from 'vitest';
import {
  CLAIMED_BY_ANNOTATION,
  CLAIMED_FROM_LABEL,
  POOL_LABEL,
  POOL_REVISION_LABEL,
} from '../api/v1alpha1/names.ts';
import { VM_POOLS } from '../api/v1alpha1/resources.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { VMPool } from '../api/v1alpha1/vmpool.ts';
import type { KubeClient } from '../kube/client.ts';
import { ApiError } from '../kube/errors.ts';
import type { KubeObject, Resource } from '../kube/objects.ts';
import type { Transport } from '../kube/transport.ts';
import {
  type ClaimAccess,
  type ClaimRequest,
  choose,
  claimVM,
  type PoolMembers,
  untilUsable,
} from './claim.ts';

/** Returns a ready VM of the pool. VMs with a lower number are older. */
function member(number: number, revision = 'r', powerState: VM['spec']['powerState'] = 'Running'): VM {
  const time = new Date(Date.UTC(2030, 0, 1, 0, number)).toISOString();
  const ready = {
    type: 'Ready',
    status: 'True',
    reason: 'Running',
    message: 'runs',
    lastTransitionTime: time,
  } as const;
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: {
      name: `ci-${number}`,
      namespace: 'platform-a',
      uid: `vm-${number}`,
      resourceVersion: '7',
      creationTimestamp: time,
      labels: { [POOL_LABEL]: 'ci', [POOL_REVISION_LABEL]: revision },
      ownerReferences: [
        { apiVersion: 'berth.dev/v1alpha1', kind: 'VMPool', name: 'ci', uid: 'pool', controller: true },
      ],
    },
    spec: { powerState },
    status: { phase: powerState, conditions: [ready] },
  };
}

const POOL: VMPool = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VMPool',
  metadata: { name: 'ci', namespace: 'platform-a', uid: 'pool' },
  spec: { replicas: 2, template: { spec: { image: 'base', powerState: 'Suspended' } } },
  status: { revision: 'r' },
};

/** VMs of a pool: those that exist, and those that become ready later. */
function members(items: readonly VM[], later: readonly VM[] = []): PoolMembers {
  return {
    list: async () => await Promise.resolve({ items: [...items], resourceVersion: '9' }),
    async *follow(_pool, resourceVersion) {
      expect(resourceVersion).toBe('9');
      yield* await Promise.resolve(later);
    },
  };
}

function world(pool: VMPool, taken: readonly string[] = []) {
  const mergePatch = vi.fn(async (_type: unknown, { name }: { name: string }, patch: object) => {
    if (taken.includes(name)) {
      throw new ApiError('changed', { status: 409, reason: 'Conflict' });
    }
    return await Promise.resolve({ status: { phase: 'Running' }, ...patch });
  });
  const create = vi.fn(async (_type: Resource<KubeObject>, object: object) => await Promise.resolve(object));
  const get = async (type: Resource<KubeObject>) =>
    await Promise.resolve(type === VM_POOLS ? pool : undefined);
  const client = { get, mergePatch, create } as unknown as KubeClient;
  const access = { client, watches: {} as Transport, username: 'ann', attempts: new Set<string>() };
  return { ...access, mergePatch, create };
}

function request(whenEmpty: ClaimRequest['whenEmpty']): ClaimRequest {
  const signal = new AbortController().signal;
  return {
    namespace: 'platform-a',
    pool: 'ci',
    whenEmpty,
    aliveUntil: '2030-01-01T09:00:00Z',
    minutes: 1,
    signal,
  };
}

it('chooses one of the older half, and of the present revision if there is any', () => {
  const ready = [member(4), member(1), member(3), member(2), member(0, 'old')];
  const chosen = new Set(Array.from({ length: 200 }, () => choose(ready, 'r').metadata.name));
  expect(chosen).toEqual(new Set(['ci-1', 'ci-2']));
  expect(choose([member(9, 'old')], 'r').metadata.name).toBe('ci-9');
});

it('is one write bound to the version that was read, and takes the next VM if somebody was faster', async () => {
  const { mergePatch, ...access } = world(POOL, ['ci-1']);
  const suspended = [member(1, 'r', 'Suspended'), member(2, 'r', 'Suspended')];
  const { isCold, isReady } = await claimVM({ ...access, members: members(suspended) }, request('fail'));
  expect([isCold, isReady]).toEqual([false, false]);
  expect(mergePatch.mock.calls.at(-1)?.[2]).toEqual({
    metadata: {
      uid: 'vm-2',
      resourceVersion: '7',
      ownerReferences: [],
      labels: { [POOL_LABEL]: null, [CLAIMED_FROM_LABEL]: 'ci' },
      annotations: { [CLAIMED_BY_ANNOTATION]: 'ann' },
    },
    spec: { aliveUntil: '2030-01-01T09:00:00Z', powerState: 'Running' },
  });
});

it('without an end of life gives the VM one until the caller has its answer', async () => {
  const { mergePatch, ...access } = world(POOL);
  const { aliveUntil: _, ...endless } = request('fail');
  const limits = { ...endless, aliveUntil: undefined };
  const claim = await claimVM({ ...access, members: members([member(1)]) }, limits);
  const life = Date.parse(claim.vm.spec.aliveUntil ?? '') - Date.now();
  expect(life).toBeGreaterThan(60_000);
  expect(life).toBeLessThanOrEqual(120_000);
  await untilUsable({ vm: claim.vm }, claim, { ...access, ...limits, waitFor: 'ready' });
  expect(mergePatch.mock.calls.at(-1)?.[2]).toMatchObject({ spec: { aliveUntil: null } });
});

it('of a pool that the process watches is one request, and reads the pool only if no VM is ready', async () => {
  const { mergePatch, client, ...rest } = world(POOL);
  const get = vi.spyOn(client, 'get');
  const watched = (items: readonly VM[]): PoolMembers => ({ ...members(items), pool: () => POOL });
  const access = { ...rest, client, members: watched([member(1)]) };
  expect((await claimVM(access, request('fail'))).vm.metadata.uid).toBe('vm-1');
  expect([mergePatch.mock.calls.length, get.mock.calls.length]).toEqual([1, 0]);
  await expect(claimVM(access, request('fail'))).rejects.toThrow('No VM of pool ci is ready');
  expect(get).toHaveBeenCalledTimes(1);
  // A pool that was made anew has another uid than the known one.
  const anew = { ...POOL, metadata: { ...POOL.metadata, uid: 'anew' } };
  const [first] = [member(2)].map((vm) => ({
    ...vm,
    metadata: {
      ...vm.metadata,
      ownerReferences: vm.metadata.ownerReferences?.map((owner) => ({ ...owner, uid: 'anew' })) ?? [],
    },
  }));
  const other = world(anew);
  const late = { ...other, members: watched(first === undefined ? [] : [first]) };
  expect((await claimVM(late, request('fail'))).vm.metadata.uid).toBe('vm-2');
});

it('of an empty pool fails, or makes a new VM that boots', async () => {
  const { create, ...access } = { ...world(POOL), members: members([]) };
  await expect(claimVM(access, request('fail'))).rejects.toThrow('No VM of pool ci is ready');
  expect((await claimVM(access, request('deploy'))).isCold).toBe(true);
  expect(create.mock.calls[0]?.[1]).toMatchObject({
    metadata: { generateName: 'ci-', labels: { [CLAIMED_FROM_LABEL]: 'ci' } },
    spec: { image: 'base' },
  });
  expect(create.mock.calls[0]?.[1]).not.toHaveProperty('spec.powerState');
});

it('of a pool whose VMs take jobs by themselves is refused', async () => {
  const pool: VMPool = { ...POOL, spec: { ...POOL.spec, mode: 'OneShot' } };
  const access = { ...world(pool), members: members([]) };
  await expect(claimVM(access, request('wait'))).rejects.toThrow('mode OneShot');
});

it('of a VM that runs needs no answer of the operator: the VM was Ready in the version that was claimed', async () => {
  const access = { ...world(POOL), members: members([member(1)]) };
  const claim = await claimVM(access, request('fail'));
  expect(claim.isReady).toBe(true);
  // The status is of an earlier generation until the operator has seen the claim, and there is no connection for a watch.
  const conditions = member(1).status?.conditions?.map((one) => ({ ...one, observedGeneration: 7 })) ?? [];
  const metadata = { ...member(1).metadata, generation: 8 };
  const vm: VM = { ...member(1), metadata, status: { phase: 'Running', conditions } };
  const usable = { ...access, ...request('fail'), waitFor: 'ready' } as const;
  await expect(untilUsable({ vm }, { ...claim, vm }, usable)).resolves.toBe(vm);
});

it('that waits takes the next VM that becomes ready', async () => {
  const other: VM = { ...member(3), metadata: { ...member(3).metadata, ownerReferences: [] } };
  const access = { ...world(POOL), members: members([], [other, member(4)]) };
  const { vm, isCold } = await claimVM(access, request('wait'));
  expect([vm.metadata.uid, isCold]).toEqual(['vm-4', false]);
});

it('at the same time as others of one process tries another VM than they, and none that they have got', async () => {
  const { mergePatch, ...access } = world(POOL);
  const shared: ClaimAccess = { ...access, members: members(Array.from({ length: 8 }, (_, n) => member(n))) };
  const claims = await Promise.all(
    Array.from({ length: 8 }, async () => await claimVM(shared, request('fail'))),
  );
  expect(new Set(claims.map(({ vm }) => vm.metadata.uid)).size).toBe(8);
  expect(mergePatch).toHaveBeenCalledTimes(8);
  await expect(claimVM(shared, request('fail'))).rejects.toThrow('No VM of pool ci is ready');
});

it('that one caller may not make is left to the others', async () => {
  const { mergePatch, ...access } = world(POOL);
  mergePatch.mockRejectedValueOnce(new ApiError('no', { status: 403, reason: 'Forbidden' }));
  const shared: ClaimAccess = { ...access, members: members([member(1)]) };
  await expect(claimVM(shared, request('fail'))).rejects.toThrow('no');
  expect((await claimVM(shared, request('fail'))).vm.metadata.uid).toBe('vm-1');
});
