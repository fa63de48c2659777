/** Metrics of snapshots. Only the leader exports them. */
import type { Gauge, Registry } from 'prom-client';
import type { VMSnapshot } from '../../api/v1alpha1/vmsnapshot.ts';
import { exportLeaderGauge } from '../../kube/leadergauge.ts';

const PHASES = ['Pending', 'Saving', 'Ready', 'Failed'] as const;

/** Functions and caches that the gauge reads for each scrape. */
interface SnapshotView {
  readonly isLeader: () => boolean;
  readonly snapshots: () => readonly Readonly<VMSnapshot>[];
  /** Returns the names of the namespaces that Berth serves. The gauge has a value for each of them, also for one without snapshots. */
  readonly namespaces: () => readonly string[];
}

export function exportSnapshotMetrics(registry: Registry, view: SnapshotView): void {
  exportLeaderGauge(registry, {
    name: 'berth_vm_snapshots',
    help: 'VMSnapshots by phase',
    labelNames: ['phase', 'vm_namespace'],
    isLeader: view.isLeader,
    count: (gauge) => count(gauge, view),
  });
}

function count(gauge: Gauge<'phase' | 'vm_namespace'>, { snapshots, namespaces }: SnapshotView): void {
  for (const vm_namespace of namespaces()) {
    PHASES.forEach((phase) => gauge.set({ phase, vm_namespace }, 0));
  }
  for (const { metadata, status } of snapshots()) {
    gauge.inc({ phase: status?.phase ?? 'Pending', vm_namespace: metadata.namespace ?? '' });
  }
}
