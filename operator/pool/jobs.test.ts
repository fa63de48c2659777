import { Registry } from 'prom-client';
import { expect, it } from 'vitest';
import { API_VERSION, CLAIMED_FROM_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import type { ObjectChange } from '../../kube/cache.ts';
import type { Informer } from '../../kube/informer.ts';
import { PoolJobs } from './jobs.ts';
import { PoolMetrics } from './metrics.ts';

const POOL: VMPool = {
  apiVersion: API_VERSION,
  kind: 'VMPool',
  metadata: { name: 'ci', namespace: 'platform-a', uid: 'pool' },
  spec: { replicas: 1, template: { spec: { image: 'base' } } },
};
const OWNER = { apiVersion: API_VERSION, kind: 'VMPool', name: 'ci', uid: 'pool', controller: true };

interface State {
  readonly powerState?: 'Running' | 'Suspended';
  readonly isOwned?: boolean;
  /** Generation that the condition Ready is about. */
  readonly observed?: number;
  readonly isDeleted?: boolean;
}

function vm({ powerState = 'Running', isOwned = false, observed = 1, isDeleted = false }: State): VM {
  const ready = { type: 'Ready', status: 'True', observedGeneration: observed } as const;
  const owned = isOwned ? { ownerReferences: [OWNER] } : { labels: { [CLAIMED_FROM_LABEL]: 'ci' } };
  return {
    metadata: {
      name: 'ci-1',
      namespace: 'platform-a',
      uid: 'vm',
      generation: isOwned ? 1 : 2,
      ...owned,
      ...(isDeleted && { deletionTimestamp: '2030-01-01T00:00:00Z' }),
    },
    spec: { powerState },
    status: { phase: powerState, conditions: [ready] },
  } as unknown as VM;
}

function world(pools: VMPool[] = [POOL]) {
  const registry = new Registry();
  const metrics = new PoolMetrics(registry, {
    isLeader: () => true,
    pools: () => [],
    onTime: () => undefined,
  });
  let now = 0;
  const cache = { get: (key: string) => pools.find(() => key === 'platform-a/ci') };
  const source = { cache } as unknown as Informer<VMPool>;
  const jobs = new PoolJobs({ pools: source, metrics, clock: () => now, isLeader: () => true });
  return {
    metrics,
    /** Shows the change to the jobs after so many seconds. */
    after: (seconds: number, change: ObjectChange<VM>) => {
      now += seconds * 1_000;
      jobs.observe(change);
    },
    sums: async () =>
      (await registry.metrics()).split('\n').filter((line) => /^berth_pool_(claim|job)\w+_sum/.test(line)),
  };
}

const update = (object: VM, previous: VM): ObjectChange<VM> => ({ type: 'updated', object, previous });
const LABELS = 'vm_namespace="platform-a",pool="ci"';

it('of a VM that ran waits for nothing, and its job runs until the VM is deleted', async () => {
  const { after, sums, metrics } = world();
  const claimed = vm({});
  after(0, update(claimed, vm({ isOwned: true })));
  after(7, update(vm({ observed: 2 }), claimed));
  after(8, update(vm({ isDeleted: true }), claimed));
  after(9, { type: 'deleted', object: claimed });
  expect(await sums()).toEqual([
    `berth_pool_claim_wait_seconds_sum{${LABELS},start="ready"} 0`,
    `berth_pool_job_run_seconds_sum{${LABELS}} 15`,
  ]);
  metrics.forgetPool(POOL);
  expect(await sums()).toEqual([]);
});

it('of a suspended VM waits until it has resumed, as the operator has seen it', async () => {
  const { after, sums } = world();
  const member = vm({ isOwned: true, powerState: 'Suspended' });
  const claimed = { ...vm({}), status: member.status };
  after(0, update(claimed as VM, member));
  after(1, update(vm({ observed: 1 }), claimed as VM));
  after(2, update(vm({ observed: 2 }), claimed as VM));
  expect(await sums()).toEqual([`berth_pool_claim_wait_seconds_sum{${LABELS},start="resumed"} 3`]);
});

it('of an empty pool waits for a new VM, and nothing is measured for a pool that is gone', async () => {
  const pools = [POOL];
  const { after, sums } = world(pools);
  after(0, { type: 'added', object: vm({}) });
  after(4, update(vm({ observed: 2 }), vm({})));
  pools.pop();
  after(5, { type: 'deleted', object: vm({}) });
  expect(await sums()).toEqual([`berth_pool_claim_wait_seconds_sum{${LABELS},start="new"} 4`]);
});
