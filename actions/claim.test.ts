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
import { choose, claimVM, type ClaimRequest, untilUsable } from './claim.ts';

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

function world(pool: VMPool, taken: readonly string[] = []) {
  const mergePatch = vi.fn(async (_type: unknown, { name }: { name: string }, patch: object) => {
    if (taken.includes(name)) {
      throw new ApiError('changed', { status: 409, reason: 'Conflict' });
    }
    return await Promise.resolve(patch);
  });
  const create = vi.fn(async (_type: Resource<KubeObject>, object: object) => await Promise.resolve(object));
  const get = async (type: Resource<KubeObject>) =>
    await Promise.resolve(type === VM_POOLS ? pool : undefined);
  const client = { get, mergePatch, create } as unknown as KubeClient;
  return { client, watches: {} as Transport, username: 'ann', mergePatch, create };
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
  const members = [member(4), member(1), member(3), member(2), member(0, 'old')];
  const chosen = new Set(Array.from({ length: 200 }, () => choose(members, 'r').metadata.name));
  expect(chosen).toEqual(new Set(['ci-1', 'ci-2']));
  expect(choose([member(9, 'old')], 'r').metadata.name).toBe('ci-9');
});

it('is one write bound to the version that was read, and takes the next VM if somebody was faster', async () => {
  const { mergePatch, ...access } = world(POOL, ['ci-1']);
  const members = [member(1, 'r', 'Suspended'), member(2, 'r', 'Suspended')];
  const { isCold } = await claimVM(
    { ...access, membersOf: async () => await Promise.resolve(members) },
    request('fail'),
  );
  expect([isCold, mergePatch.mock.calls.length]).toEqual([false, 2]);
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
  const membersOf = async () => await Promise.resolve([member(1)]);
  const { aliveUntil: _, ...endless } = request('fail');
  const limits = { ...endless, aliveUntil: undefined };
  const claim = await claimVM({ ...access, membersOf }, limits);
  const life = Date.parse(claim.vm.spec.aliveUntil ?? '') - Date.now();
  expect(life).toBeGreaterThan(60_000);
  expect(life).toBeLessThanOrEqual(120_000);
  const vm: VM = { ...member(1), spec: claim.vm.spec };
  await untilUsable({ vm }, { vm, isCold: false }, { ...access, ...limits, waitFor: 'ready' });
  expect(mergePatch.mock.calls.at(-1)?.[2]).toMatchObject({ spec: { aliveUntil: null } });
});

it('of an empty pool fails, or makes a new VM that boots', async () => {
  const { create, ...access } = { ...world(POOL), membersOf: async () => await Promise.resolve([]) };
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
  const access = { ...world(pool), membersOf: async () => await Promise.resolve([]) };
  await expect(claimVM(access, request('wait'))).rejects.toThrow('mode OneShot');
});
