/**
 * Exports the number of VMs of each scale set of runners. Only the leader exports this number. Otherwise a sum over all replicas would
 * count each VM several times.
 */
import { Gauge, type Registry } from 'prom-client';
import { SCALE_SET_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { OperatorConfig } from '../config/config.ts';

/** Functions and caches that the gauge reads for each scrape. */
export interface RunnerView {
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
  let countedAt = Number.NEGATIVE_INFINITY;
  const gauge: Gauge<Labels> = new Gauge({
    name: 'berth_runner_scale_set_vms',
    help: 'VMs with the label berth.dev/scale-set, by scale set and phase',
    labelNames: ['scale_set', 'vm_namespace', 'phase'] as const,
    registers: [registry],
    collect: () => {
      if (!view.isLeader()) {
        gauge.reset();
        countedAt = Number.NEGATIVE_INFINITY;
        return;
      }
      const age = view.clock() - countedAt;
      // The age is negative when the clock was set back.
      if (age < 0 || age >= intervalSeconds * 1000) {
        countedAt = view.clock();
        count(gauge, view);
      }
    },
  });
}

/** Counts only existing VMs. Therefore there are never more series than VMs, even though tenants choose the names of scale sets. */
function count(gauge: Gauge<Labels>, { vms }: RunnerView): void {
  gauge.reset();
  for (const { metadata, status } of vms()) {
    const scale_set = metadata.labels?.[SCALE_SET_LABEL];
    if (scale_set !== undefined && scale_set !== '') {
      gauge.inc({ scale_set, vm_namespace: metadata.namespace ?? '', phase: status?.phase ?? 'Pending' });
    }
  }
}
