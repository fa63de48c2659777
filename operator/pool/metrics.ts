/** Metrics of VMPools. The gauges have one series for each pool that exists, and only the leader exports them. */
import { Counter, type Gauge, type Registry } from 'prom-client';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import { exportLeaderGauge } from '../../kube/leadergauge.ts';

export interface PoolView {
  readonly isLeader: () => boolean;
  readonly pools: () => readonly Readonly<VMPool>[];
}

export class PoolMetrics {
  readonly #claims: Counter<'vm_namespace'>;
  readonly #failures: Counter<'vm_namespace'>;

  constructor(registry: Registry, view: PoolView) {
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
  }

  claimed({ metadata }: Readonly<VMPool>): void {
    this.#claims.inc({ vm_namespace: metadata.namespace ?? '' });
  }

  failed({ metadata }: Readonly<VMPool>): void {
    this.#failures.inc({ vm_namespace: metadata.namespace ?? '' });
  }

  /** Removes the counts of a deleted namespace. Otherwise its series would be exported until the operator ends. */
  forget(vm_namespace: string): void {
    this.#claims.remove({ vm_namespace });
    this.#failures.remove({ vm_namespace });
  }
}

function countVMs(
  gauge: Gauge<'vm_namespace' | 'pool' | 'state'>,
  { metadata, spec, status }: Readonly<VMPool>,
): void {
  const labels = { vm_namespace: metadata.namespace ?? '', pool: metadata.name };
  gauge.set({ ...labels, state: 'wanted' }, spec.replicas);
  gauge.set({ ...labels, state: 'ready' }, status?.readyReplicas ?? 0);
  gauge.set({ ...labels, state: 'stale' }, status?.staleReplicas ?? 0);
}
