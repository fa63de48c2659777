/**
 * Measures the jobs of claimed VMs: the time from the claim until the VM can be used, and from there to its end. Only this process remembers
 * them, so jobs that began before it was the leader are not measured.
 */
import { CLAIMED_FROM_LABEL } from '../../api/v1alpha1/names.ts';
import { poolUidOf } from '../../api/v1alpha1/poolmembers.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import type { ObjectChange } from '../../kube/cache.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import type { ClaimStart, PoolMetrics } from './metrics.ts';
import { poolKeyOf } from './observe.ts';

type Pools = Pick<Informer<VMPool>, 'cache'>;

/** Returns the pool from which the change took the VM. The result is undefined if the change is no claim. */
export function claimedPool(
  pools: Pools,
  { type, object, previous }: ObjectChange<VM>,
): Readonly<VMPool> | undefined {
  const key = previous && poolKeyOf(previous);
  if (type !== 'updated' || key === undefined || poolUidOf(object) !== undefined) {
    return undefined;
  }
  const pool = pools.cache.get(key);
  return object.metadata.labels?.[CLAIMED_FROM_LABEL] === pool?.metadata.name ? pool : undefined;
}

interface Job {
  readonly poolKey: string;
  readonly start: ClaimStart;
  /** Time of the claim, in milliseconds since the epoch. */
  readonly claimedAt: number;
  /** Time since which the VM can be used. It is undefined until then. */
  readyAt: number | undefined;
}

interface JobSources {
  readonly pools: Pools;
  readonly metrics: Pick<PoolMetrics, 'waited' | 'ran'>;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  readonly isLeader: () => boolean;
}

export class PoolJobs {
  readonly #sources: JobSources;
  /** Jobs by the uid of their VM. There are never more of them than VMs. */
  readonly #jobs = new Map<string, Job>();

  constructor(sources: JobSources) {
    this.#sources = sources;
  }

  /** Follows the VM of the change. */
  observe(change: ObjectChange<VM>): void {
    const { object: vm, type } = change;
    const { uid = '' } = vm.metadata;
    const job = this.#jobs.get(uid) ?? this.#begin(change);
    if (job === undefined) {
      return;
    }
    this.#jobs.set(uid, job);
    if (job.readyAt === undefined && isUsable(vm)) {
      this.#ready(job);
    }
    if (type === 'deleted' || isOver(vm)) {
      this.#jobs.delete(uid);
      this.#measure(job, ({ metrics, clock }, pool) => {
        if (job.readyAt !== undefined) {
          metrics.ran(pool, (clock() - job.readyAt) / 1000);
        }
      });
    }
  }

  /** Returns a new job if the change is a claim, or the creation of a VM for a caller who found no ready one. */
  #begin(change: ObjectChange<VM>): Job | undefined {
    const { pools, clock, isLeader } = this.#sources;
    const { object, previous, type } = change;
    if (!isLeader()) {
      return undefined;
    }
    const pool = type === 'added' ? this.#poolOfNew(object) : claimedPool(pools, change);
    if (pool === undefined) {
      return undefined;
    }
    const start: ClaimStart = type === 'added' ? 'new' : STARTS[previous?.spec.powerState ?? 'Running'];
    const job: Job = { poolKey: keyOf(pool), start, claimedAt: clock(), readyAt: undefined };
    // A claim takes only VMs that are Ready, so one that runs can be used at once.
    if (start === 'ready') {
      this.#ready(job);
    }
    return job;
  }

  #poolOfNew({ metadata }: Readonly<VM>): Readonly<VMPool> | undefined {
    const { [CLAIMED_FROM_LABEL]: name } = metadata.labels ?? {};
    return name === undefined
      ? undefined
      : this.#sources.pools.cache.get(keyOf({ metadata: { ...metadata, name } }));
  }

  #ready(job: Job): void {
    const now = this.#sources.clock();
    job.readyAt = now;
    this.#measure(job, ({ metrics }, pool) => {
      metrics.waited(pool, job.start, (now - job.claimedAt) / 1000);
    });
  }

  /** Measures only while the pool exists, because the series of a deleted pool are gone. */
  #measure(job: Job, measure: (sources: JobSources, pool: Readonly<VMPool>) => void): void {
    const pool = this.#sources.pools.cache.get(job.poolKey);
    if (pool !== undefined) {
      measure(this.#sources, pool);
    }
  }
}

/** How a claimed VM starts, by the power state that it had in the pool. */
const STARTS = { Running: 'ready', Suspended: 'resumed', Stopped: 'booted' } as const;

function isUsable({ metadata, spec, status }: Readonly<VM>): boolean {
  const ready = conditionIn(status, 'Ready');
  const runs = (spec.powerState ?? 'Running') === 'Running' && status?.phase === 'Running';
  return runs && ready?.status === 'True' && ready.observedGeneration === metadata.generation;
}

function isOver({ metadata, status }: Readonly<VM>): boolean {
  return metadata.deletionTimestamp !== undefined || conditionIn(status, 'Stalled')?.status === 'True';
}
