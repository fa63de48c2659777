/**
 * Metrics of VMs. Every metric has the label `vm_namespace`. Only the leader exports these metrics. Otherwise a sum over all replicas would
 * count each VM several times.
 */
import { Counter, type Gauge, Histogram, type Registry } from 'prom-client';
import { exportLeaderGauge } from '../../kube/leadergauge.ts';
import { VM_PHASES } from '../../api/v1alpha1/phases.ts';
import { isReason, type Reason, REASONS } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import { PENDING_PHASES } from './phase.ts';
import { DEFAULT_VM_NAME, SCALE_SET_LABEL } from '../../api/v1alpha1/names.ts';
import type { OperatorConfig } from '../config/config.ts';

/**
 * Upper bounds of the histogram's buckets in seconds. A deployment takes half a second if the host has the image, and otherwise up to
 * hours.
 */
const TRANSITION_BUCKETS = [0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 10800];

/** Label of failures whose reason is not in the catalogue. */
const OTHER_REASON: Reason = 'MachineFailed';

/** Functions and caches that the gauges read for each scrape. */
export interface VMView {
  readonly isLeader: () => boolean;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  readonly vms: () => readonly Readonly<VM>[];
  /** Returns the names of the namespaces that Berth serves. For a namespace without pending VMs, the gauges show 0 instead of no value. */
  readonly namespaces: () => readonly string[];
}

export class VMMetrics {
  readonly #transitions: Histogram<'vm_namespace' | 'phase'>;
  readonly #failures: Counter<'vm_namespace' | 'reason'>;
  readonly #notRenewed: Counter<'vm_namespace'>;

  constructor(registry: Registry, view: VMView) {
    const registers = [registry];
    exportLeaderGauge(registry, {
      name: 'berth_pending_vms',
      help: 'VMs that are Pending or on their way to Running (Scheduled, Pulling, Cloning, Starting)',
      labelNames: ['vm_namespace'],
      isLeader: view.isLeader,
      count: (gauge) => show(gauge, view, (vms) => vms.length),
    });
    exportLeaderGauge(registry, {
      name: 'berth_oldest_pending_vm_seconds',
      help: 'Age in seconds of the oldest VM that is pending and has never run. The value is 0 if there is no such VM',
      labelNames: ['vm_namespace'],
      isLeader: view.isLeader,
      count: (gauge) =>
        show(gauge, view, (vms) => Math.max(0, ...vms.map((vm) => secondsWithoutRun(vm, view.clock())))),
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
      help: 'VMs that failed and are not started again, by the reason in status.failure (MachineFailed if Berth does not know the reason)',
      labelNames: ['vm_namespace', 'reason'] as const,
      registers,
    });
    this.#notRenewed = new Counter({
      name: 'berth_vms_not_renewed_total',
      help: 'VMs that were deleted because nobody moved the time in spec.aliveUntil later',
      labelNames: ['vm_namespace'] as const,
      registers,
    });
  }

  /** Counts a VM that was deleted because nobody prolonged its life. */
  notRenewed({ metadata }: VM): void {
    this.#notRenewed.inc({ vm_namespace: metadata.namespace ?? '' });
  }

  /** Updates the metrics after a status was written. `now` is in milliseconds since the epoch. */
  observe(vm: VM, last: VMStatus | undefined, next: VMStatus, now: number): void {
    const vm_namespace = vm.metadata.namespace ?? '';
    if (next.phase !== undefined && next.phase !== last?.phase) {
      const created = Date.parse(vm.metadata.creationTimestamp ?? '');
      this.#transitions.observe({ vm_namespace, phase: next.phase }, Math.max(0, now - created) / 1000);
    }
    if (next.failure !== undefined && last?.failure === undefined) {
      const { reason } = next.failure;
      // A host can report any word. Only reasons of the catalogue become labels, so that the number of series has a limit.
      this.#failures.inc({ vm_namespace, reason: isReason(reason) ? reason : OTHER_REASON });
    }
  }

  /** Removes the counts of a deleted namespace. Otherwise its series would be exported until the operator ends. */
  forget(vm_namespace: string): void {
    Object.keys(VM_PHASES).forEach((phase) => this.#transitions.remove({ vm_namespace, phase }));
    Object.keys(REASONS).forEach((reason) => this.#failures.remove({ vm_namespace, reason }));
    this.#notRenewed.remove({ vm_namespace });
  }
}

/** Sets the gauge of every namespace to the result of `measure` for its pending VMs. */
function show(
  gauge: Gauge<'vm_namespace'>,
  view: VMView,
  measure: (pending: readonly Readonly<VM>[]) => number,
): void {
  const pending = Map.groupBy(view.vms().filter(isPending), ({ metadata }) => metadata.namespace ?? '');
  for (const vm_namespace of new Set([...view.namespaces(), ...pending.keys()])) {
    gauge.set({ vm_namespace }, measure(pending.get(vm_namespace) ?? []));
  }
}

function isPending({ metadata, status }: Readonly<VM>): boolean {
  return PENDING_PHASES.has(status?.phase ?? 'Pending') && metadata.deletionTimestamp === undefined;
}

/**
 * Returns the age of a VM in seconds. The result is 0 for a VM that ran before, because the age of such a VM is not the duration of its
 * present start.
 */
function secondsWithoutRun({ metadata, status }: Readonly<VM>, now: number): number {
  const created = Date.parse(metadata.creationTimestamp ?? '');
  return status?.firstRunningTime === undefined ? (now - created) / 1000 : 0;
}

/** Functions and caches that the gauge reads for each scrape. */
interface RunnerView {
  readonly isLeader: () => boolean;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  readonly vms: () => readonly Readonly<VM>[];
  readonly config: OperatorConfig['runnerMetrics'];
}

type Labels = 'scale_set' | 'vm_namespace' | 'phase';

/** Declares the gauge if the configuration enables it. A scrape counts the VMs again if the last count is older than the interval. */
export function exportRunnerMetrics(registry: Registry, view: RunnerView): void {
  const { enabled, intervalSeconds } = view.config;
  if (!enabled) {
    return;
  }
  let counted: { readonly at: number; readonly vms: readonly Record<Labels, string>[] } | undefined;
  exportLeaderGauge<Labels>(registry, {
    name: 'berth_runner_scale_set_vms',
    help: 'VMs with the label berth.dev/scale-set or a generated name, by scale set and phase',
    labelNames: ['scale_set', 'vm_namespace', 'phase'],
    isLeader: view.isLeader,
    count: (gauge) => {
      const now = view.clock();
      const age = now - (counted?.at ?? Number.NEGATIVE_INFINITY);
      // The age is negative when the clock was set back.
      if (counted === undefined || age < 0 || age >= intervalSeconds * 1000) {
        counted = { at: now, vms: runnersIn(view) };
      }
      counted.vms.forEach((labels) => gauge.inc(labels));
    },
  });
}

/** Start of the generated names of VMs for which nobody chose a name. */
const UNNAMED = `${DEFAULT_VM_NAME}-`;

/**
 * Returns the scale set of a VM: its label, or else the text before the generated part of its name, because programs for runners generate
 * the names of their VMs and set no label. The result is empty for other VMs.
 */
function scaleSetOf({ labels, generateName = UNNAMED }: VM['metadata']): string {
  return labels?.[SCALE_SET_LABEL] || (generateName === UNNAMED ? '' : generateName.replace(/-$/, ''));
}

/**
 * Returns the labels of each VM of a scale set. Only existing VMs have some. Therefore there are never more series than VMs, even though
 * tenants choose the names of scale sets.
 */
function runnersIn({ vms }: RunnerView): Record<Labels, string>[] {
  return vms().flatMap(({ metadata, status }) => {
    const scale_set = scaleSetOf(metadata);
    const vm_namespace = metadata.namespace ?? '';
    return scale_set === '' ? [] : [{ scale_set, vm_namespace, phase: status?.phase ?? 'Pending' }];
  });
}
