/** Metrics of VMPools. Gauges and histograms have series only for pools that exist, and only the leader has them. */
import { Counter, type Gauge, Histogram, type Registry } from 'prom-client';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import { exportLeaderGauge } from '../../kube/leadergauge.ts';

export interface PoolView {
  readonly isLeader: () => boolean;
  readonly pools: () => readonly Readonly<VMPool>[];
  /** Called with each time of a job in seconds. */
  readonly onTime: (pool: Readonly<VMPool>, measure: 'waited' | 'ran', seconds: number) => void;
}

/** Upper bounds in seconds. A VM that runs can be used at once, a suspended one resumes in about a second, and a new one boots. */
const WAIT_BUCKETS = [0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600];
/** Upper bounds in seconds. Most jobs of CI take minutes. */
const RUN_BUCKETS = [10, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400];

/** How a claimed VM starts: it runs already, it resumes, it boots, or the pool was empty and it is new. */
export const CLAIM_STARTS = ['ready', 'resumed', 'booted', 'new'] as const;
export type ClaimStart = (typeof CLAIM_STARTS)[number];

export class PoolMetrics {
  readonly #claims: Counter<'vm_namespace'>;
  readonly #failures: Counter<'vm_namespace'>;
  readonly #waits: Histogram<'vm_namespace' | 'pool' | 'start'>;
  readonly #runs: Histogram<'vm_namespace' | 'pool'>;
  readonly #onTime: PoolView['onTime'];

  constructor(registry: Registry, view: PoolView) {
    this.#onTime = view.onTime;
    const registers = [registry];
    exportLeaderGauge(registry, {
      name: 'berth_pool_vms',
      help: 'VMs of each VMPool, by state: wanted (as declared), ready, or stale (of an earlier template or image)',
      labelNames: ['vm_namespace', 'pool', 'state'],
      isLeader: view.isLeader,
      count: (gauge) => view.pools().forEach((pool) => countVMs(gauge, pool)),
    });
    this.#claims = new Counter({
      name: 'berth_pool_claims_total',
      help: 'VMs that users claimed from VMPools',
      labelNames: ['vm_namespace'] as const,
      registers,
    });
    this.#failures = new Counter({
      name: 'berth_pool_failures_total',
      help: 'VMs of VMPools that failed and were deleted before somebody claimed them',
      labelNames: ['vm_namespace'] as const,
      registers,
    });
    this.#waits = new Histogram({
      name: 'berth_pool_claim_wait_seconds',
      help: 'Seconds from the claim of a VM until it is Ready, by start: ready (it runs already), resumed, booted, or new (the pool was empty)',
      labelNames: ['vm_namespace', 'pool', 'start'] as const,
      buckets: WAIT_BUCKETS,
      registers,
    });
    this.#runs = new Histogram({
      name: 'berth_pool_job_run_seconds',
      help: 'Seconds from the time when a claimed VM was Ready, or a VM with mode OneShot ran, until the VM ended or was deleted',
      labelNames: ['vm_namespace', 'pool'] as const,
      buckets: RUN_BUCKETS,
      registers,
    });
  }

  claimed({ metadata }: Readonly<VMPool>): void {
    this.#claims.inc({ vm_namespace: metadata.namespace ?? '' });
  }

  failed({ metadata }: Readonly<VMPool>): void {
    this.#failures.inc({ vm_namespace: metadata.namespace ?? '' });
  }

  /** Measures the wait for a claimed VM. */
  waited(pool: Readonly<VMPool>, start: ClaimStart, seconds: number): void {
    this.#waits.observe({ ...labelsOf(pool), start }, Math.max(0, seconds));
    this.#onTime(pool, 'waited', seconds);
  }

  /** Measures the job of a VM that has ended. */
  ran(pool: Readonly<VMPool>, seconds: number): void {
    this.#runs.observe(labelsOf(pool), Math.max(0, seconds));
    this.#onTime(pool, 'ran', seconds);
  }

  /** Removes the series of a deleted pool. */
  forgetPool(pool: Readonly<VMPool>): void {
    const labels = labelsOf(pool);
    CLAIM_STARTS.forEach((start) => this.#waits.remove({ ...labels, start }));
    this.#runs.remove(labels);
  }

  /** Removes the counts of a deleted namespace. Otherwise its series would be exported until the operator ends. */
  forget(vm_namespace: string): void {
    this.#claims.remove({ vm_namespace });
    this.#failures.remove({ vm_namespace });
  }
}

function labelsOf({ metadata }: Readonly<VMPool>): Record<'vm_namespace' | 'pool', string> {
  return { vm_namespace: metadata.namespace ?? '', pool: metadata.name };
}

function countVMs(gauge: Gauge<'vm_namespace' | 'pool' | 'state'>, pool: Readonly<VMPool>): void {
  const { spec, status } = pool;
  const labels = labelsOf(pool);
  gauge.set({ ...labels, state: 'wanted' }, spec.replicas);
  gauge.set({ ...labels, state: 'ready' }, status?.readyReplicas ?? 0);
  gauge.set({ ...labels, state: 'stale' }, status?.staleReplicas ?? 0);
}
