/**
 * Derives the phase of an Emulator from its Pod, its VM and its facts, and exports the number of Emulators by phase. Only the leader exports
 * the number. Otherwise a sum over all replicas would count each Emulator several times.
 */
import type { Gauge, Registry } from 'prom-client';
import { exportLeaderGauge } from '../../kube/leadergauge.ts';
import { saidReason, type SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import { hasEnded, machineCondition, waitingState } from '../podbacked/pod.ts';
import { type EmulatorFacts, isBootingAgain } from './facts.ts';
import type { ObservedEmulator } from './observe.ts';
import { hostTrouble, pairingOf } from './pairing.ts';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';

const EMULATOR_PHASES = [
  'Pending',
  'Scheduled',
  'Starting',
  'Running',
  'Stopped',
  'Failed',
  'Terminating',
] as const;
export type EmulatorPhase = (typeof EMULATOR_PHASES)[number];

export interface EmulatorPhaseReport {
  readonly name: EmulatorPhase;
  /** Reason and message of the Ready condition. */
  readonly reason: SaidReason;
  readonly message: string;
}

export function phaseOf(
  observed: ObservedEmulator,
  { failure, firstRunningTime }: EmulatorFacts,
): EmulatorPhaseReport {
  if (observed.emulator.metadata.deletionTimestamp !== undefined) {
    return { name: 'Terminating', reason: 'Terminating', message: 'The Emulator is being deleted' };
  }
  if (failure !== undefined) {
    return { name: 'Failed', reason: saidReason(failure.reason, 'MachineFailed'), message: failure.message };
  }
  const pairing = pairingOf(observed);
  if (pairing.kind === 'missing') {
    return { name: 'Pending', reason: 'VMNotFound', message: pairing.message };
  }
  if (pairing.kind === 'ended') {
    const name = firstRunningTime === undefined ? 'Pending' : 'Stopped';
    return { name, reason: 'VMNotRunning', message: pairing.message };
  }
  return silentPhase(observed) ?? podPhase(observed.pod);
}

/**
 * Returns the phase of an Emulator whose host does not respond. The phase depends on the VM's condition Ready. The result is undefined
 * while the host responds, or if the Pod has no host.
 */
function silentPhase({ vm, pod }: ObservedEmulator): EmulatorPhaseReport | undefined {
  const trouble = hostTrouble(vm);
  if (trouble === undefined || pod?.spec.nodeName === undefined) {
    return undefined;
  }
  const { reason, message } = trouble;
  return reason === 'HostLost'
    ? { name: 'Failed', reason: 'HostLost', message }
    : { name: podPhase(pod).name, reason: saidReason(reason, 'HostUnreachable'), message };
}

/** Returns true if the phase is the last known one, because the host does not respond. */
export function isSilent({ reason }: EmulatorPhaseReport): boolean {
  return reason === 'HostUnreachable' || reason === 'HostPoweredOff';
}

/** Derives the phase of the Emulator from the phase of its Pod and from the state that the agent reports. */
function podPhase(pod: Pod | undefined): EmulatorPhaseReport {
  if (pod === undefined || pod.metadata.deletionTimestamp !== undefined || hasEnded(pod)) {
    return { name: 'Pending', reason: 'Pending', message: 'The Emulator is waiting for its Pod' };
  }
  const { nodeName } = pod.spec;
  if (nodeName === undefined) {
    return { name: 'Pending', reason: 'Pending', message: 'The Emulator is waiting for its host' };
  }
  if (pod.status?.phase === 'Running' && !isBootingAgain(pod)) {
    return { name: 'Running', reason: 'Running', message: '' };
  }
  return beforeRunning(pod, nodeName);
}

function beforeRunning(pod: Pod, host: string): EmulatorPhaseReport {
  const { reason, message } = waitingState(pod);
  const isStarting = reason === 'Starting' || machineCondition(pod)?.reason === 'Starting';
  return {
    name: isStarting ? 'Starting' : 'Scheduled',
    reason: saidReason(reason, isStarting ? 'Starting' : 'Scheduled'),
    message: message || `The Emulator is bound to host ${host}`,
  };
}

/** Functions and caches that the gauge reads for each scrape. */
interface EmulatorView {
  readonly isLeader: () => boolean;
  readonly emulators: () => readonly Readonly<Emulator>[];
  /** Returns the names of the namespaces that Berth serves. The gauge has a value for each of them, also for a namespace without Emulators. */
  readonly namespaces: () => readonly string[];
}

export function exportEmulatorMetrics(registry: Registry, view: EmulatorView): void {
  exportLeaderGauge(registry, {
    name: 'berth_emulators',
    help: 'Emulators by phase',
    labelNames: ['phase', 'vm_namespace'],
    isLeader: view.isLeader,
    count: (gauge) => count(gauge, view),
  });
}

function count(gauge: Gauge<'phase' | 'vm_namespace'>, { emulators, namespaces }: EmulatorView): void {
  for (const vm_namespace of namespaces()) {
    EMULATOR_PHASES.forEach((phase) => gauge.set({ phase, vm_namespace }, 0));
  }
  for (const { metadata, status } of emulators()) {
    gauge.inc({ phase: status?.phase ?? 'Pending', vm_namespace: metadata.namespace ?? '' });
  }
}
