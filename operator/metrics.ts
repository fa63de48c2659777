/** The metrics of VMs. Every one carries `vm_namespace`; only the leader exports them, so that a sum over replicas is right. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { VMStatus } from '../api/v1alpha1/vmstatus.ts';
import { PENDING_PHASES } from './controllers/vm/phase.ts';

/** From a second, what a cached image takes, to three hours, the deadline of a cache job. */
const TRANSITION_BUCKETS = [0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 10800];

/** What the gauge counts at the moment it is read. */
export interface VMView {
  readonly isLeader: () => boolean;
  readonly vms: () => readonly Readonly<VM>[];
  /** Names of the namespaces that Berth serves: they show 0, not nothing. */
  readonly namespaces: () => readonly string[];
}

export class VMMetrics {
  readonly #transitions: Histogram<'vm_namespace' | 'phase'>;
  readonly #failures: Counter<'vm_namespace' | 'reason'>;

  constructor(registry: Registry, view: VMView) {
    const registers = [registry];
    const pending: Gauge<'vm_namespace'> = new Gauge({
      name: 'berth_pending_vms',
      help: 'VMs that are Pending or on their way to Running (Scheduled, Pulling, Cloning, Starting)',
      labelNames: ['vm_namespace'] as const,
      registers,
      collect: () => countPending(pending, view),
    });
    this.#transitions = new Histogram({
      name: 'berth_vm_phase_transition_seconds',
      help: 'Seconds from the creation of a VM until it entered the phase',
      labelNames: ['vm_namespace', 'phase'] as const,
      buckets: TRANSITION_BUCKETS,
      registers,
    });
    this.#failures = new Counter({
      name: 'berth_vm_deployments_failed_total',
      help: 'VMs that ended for good, by the reason in status.failure',
      labelNames: ['vm_namespace', 'reason'] as const,
      registers,
    });
  }

  /** Counts what a written status changed. `now` in milliseconds. */
  observe(vm: VM, last: VMStatus | undefined, next: VMStatus, now: number): void {
    const vm_namespace = vm.metadata.namespace ?? '';
    if (next.phase !== undefined && next.phase !== last?.phase) {
      const created = Date.parse(vm.metadata.creationTimestamp ?? '');
      this.#transitions.observe({ vm_namespace, phase: next.phase }, Math.max(0, now - created) / 1000);
    }
    if (next.failure !== undefined && last?.failure === undefined) {
      this.#failures.inc({ vm_namespace, reason: next.failure.reason });
    }
  }
}

function countPending(gauge: Gauge<'vm_namespace'>, view: VMView): void {
  gauge.reset();
  if (!view.isLeader()) {
    return;
  }
  const counts = new Map(view.namespaces().map((name) => [name, 0]));
  for (const vm of view.vms()) {
    const namespace = vm.metadata.namespace ?? '';
    const waits =
      PENDING_PHASES.has(vm.status?.phase ?? 'Pending') && vm.metadata.deletionTimestamp === undefined;
    counts.set(namespace, (counts.get(namespace) ?? 0) + (waits ? 1 : 0));
  }
  for (const [vm_namespace, count] of counts) {
    gauge.set({ vm_namespace }, count);
  }
}
