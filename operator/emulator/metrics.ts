/** Exports the number of Emulators. */
import type { Registry } from 'prom-client';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { leaderGauge } from '../objects/leadergauge.ts';
import { EMULATOR_PHASES } from './phase.ts';

/** Functions and caches that the gauge reads for each scrape. */
export interface EmulatorView {
  readonly isLeader: () => boolean;
  readonly emulators: () => readonly Readonly<Emulator>[];
  /** Returns the names of the namespaces that Berth serves. In each of them, the gauge is 0 for a phase without Emulators. */
  readonly namespaces: () => readonly string[];
}

export function exportEmulatorMetrics(
  registry: Registry,
  { isLeader, emulators, namespaces }: EmulatorView,
): void {
  leaderGauge(registry, {
    name: 'berth_emulators',
    help: 'Emulators by phase',
    labelNames: ['phase', 'vm_namespace'],
    isLeader,
    measure: (gauge) => {
      for (const vm_namespace of namespaces()) {
        EMULATOR_PHASES.forEach((phase) => gauge.set({ phase, vm_namespace }, 0));
      }
      for (const { metadata, status } of emulators()) {
        gauge.inc({ phase: status?.phase ?? 'Pending', vm_namespace: metadata.namespace ?? '' });
      }
    },
  });
}
