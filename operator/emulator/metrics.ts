/**
 * Exports the number of Emulators. Only the leader exports the number. Otherwise a sum over all replicas would count each Emulator several
 * times.
 */
import { Gauge, type Registry } from 'prom-client';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { EMULATOR_PHASES } from './phase.ts';

/** Functions and caches that the gauge reads for each scrape. */
export interface EmulatorView {
  readonly isLeader: () => boolean;
  readonly emulators: () => readonly Readonly<Emulator>[];
  /** Returns the names of the namespaces that Berth serves. The gauge has a value for each of them, also for a namespace without Emulators. */
  readonly namespaces: () => readonly string[];
}

export function exportEmulatorMetrics(registry: Registry, view: EmulatorView): void {
  const gauge: Gauge<'phase' | 'vm_namespace'> = new Gauge({
    name: 'berth_emulators',
    help: 'Emulators by phase',
    labelNames: ['phase', 'vm_namespace'] as const,
    registers: [registry],
    collect: () => count(gauge, view),
  });
}

function count(
  gauge: Gauge<'phase' | 'vm_namespace'>,
  { isLeader, emulators, namespaces }: EmulatorView,
): void {
  gauge.reset();
  if (!isLeader()) {
    return;
  }
  for (const vm_namespace of namespaces()) {
    EMULATOR_PHASES.forEach((phase) => gauge.set({ phase, vm_namespace }, 0));
  }
  for (const { metadata, status } of emulators()) {
    gauge.inc({ phase: status?.phase ?? 'Pending', vm_namespace: metadata.namespace ?? '' });
  }
}
