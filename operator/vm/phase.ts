/** Derives the phase of a VM from its Pod, its host and the facts in its status. Every reconcile derives the phase again. */
import { phasesIn, type VMPhase } from '../../api/v1alpha1/phases.ts';
import { type SaidReason, saidReason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import { isLost } from '../podbacked/observe.ts';
import type { VMFacts } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { hasEnded, hasRun, machineCondition, podAttempt, waitingState } from '../podbacked/pod.ts';

export interface VMPhaseReport {
  readonly name: VMPhase;
  /** Reason and message of the Ready condition. */
  readonly reason: SaidReason;
  readonly message: string;
}

/** Phases of VMs that wait to run. `berth_pending_vms` counts these VMs. A change between these phases can be stored later. */
export const PENDING_PHASES = phasesIn('deployment');
const PRE_RUNNING = ['Pulling', 'Cloning', 'Starting'] as const;
const TRANSITIONS = ['Stopping', 'Suspending', 'Resuming', 'Starting'] as const;

export function phaseOf(observed: ObservedVM, facts: VMFacts): VMPhaseReport {
  const { vm, pod } = observed;
  if (vm.metadata.deletionTimestamp !== undefined) {
    return { name: 'Terminating', reason: 'Terminating', message: 'The VM is being deleted' };
  }
  if (facts.failure !== undefined) {
    return failedPhase(observed, facts.failure);
  }
  // The Pod of an earlier placement does not determine the phase, unless a lost host has returned and its machine has run.
  if (pod === undefined || (facts.attempt > podAttempt(pod) && !hasRun(pod))) {
    return { name: 'Pending', reason: 'Pending', message: 'The VM is waiting for its Pod' };
  }
  return unreachablePhase(observed, facts) ?? podPhase(pod);
}

/** Returns the phase of a failed VM: Stopping while its host must still end the machine, otherwise Failed. */
function failedPhase(
  { pod, isGivenUp }: ObservedVM,
  failure: NonNullable<VMFacts['failure']>,
): VMPhaseReport {
  const gone = pod === undefined || hasEnded(pod) || pod.spec.nodeName === undefined;
  const left = gone || isGivenUp || failure.reason === 'HostLost';
  return {
    name: left ? 'Failed' : 'Stopping',
    reason: saidReason(failure.reason, 'MachineFailed'),
    message: failure.message,
  };
}

/**
 * Returns the phase of a VM whose host does not report. The result is undefined while the host reports, and for a VM that has never run.
 * For `hostLostTimeoutSeconds`, the VM keeps its phase, with the reason HostUnreachable. After that time, the VM is Failed, even though its
 * machine might be running.
 */
function unreachablePhase(observed: ObservedVM, facts: VMFacts): VMPhaseReport | undefined {
  const { silentSince, pod } = observed;
  if (silentSince === undefined || facts.firstRunningTime === undefined) {
    return undefined;
  }
  const host = pod?.spec.nodeName;
  if (isLost(observed)) {
    const message = `Host ${host} has not reported for more than ${observed.config.hostLostTimeoutSeconds} s. If the host reports again and has the machine, the VM becomes Running`;
    return { name: 'Failed', reason: 'HostLost', message };
  }
  const phase = pod === undefined ? 'Running' : podPhase(pod).name;
  const message = `Host ${host} does not report. Perhaps its machines are still running`;
  return poweredPhase(observed, phase) ?? { name: phase, reason: 'HostUnreachable', message };
}

/**
 * Returns the phase of a VM whose host Berth switched off. A VM that is off as declared stays as it is. The result is undefined if the host
 * was not switched off.
 */
function poweredPhase({ powered, pod, vm }: ObservedVM, name: VMPhase): VMPhaseReport | undefined {
  if (powered === undefined || powered.state === 'Leaving') {
    return undefined;
  }
  if (pod !== undefined && isOffAsDeclared({ vm }, { name })) {
    return podPhase(pod);
  }
  const state = powered.state === 'Off' ? 'was switched off' : 'was switched on and has not reported yet';
  return {
    name,
    reason: 'HostPoweredOff',
    message: `The host of the VM (Server ${powered.server}) ${state}`,
  };
}

/** Returns true if the machine is off, as the VM declares. */
export function isOffAsDeclared(
  { vm }: Pick<ObservedVM, 'vm'>,
  { name }: Pick<VMPhaseReport, 'name'>,
): boolean {
  return (
    (name === 'Stopped' || name === 'Suspended') &&
    vm.spec.powerState !== undefined &&
    vm.spec.powerState !== 'Running'
  );
}

/** Returns the phase from the Pod phase, the container state and the condition `berth.dev/Machine`, which the agent writes. */
function podPhase(pod: Pod): VMPhaseReport {
  if (pod.spec.nodeName === undefined) {
    return { name: 'Pending', reason: 'Pending', message: 'The VM is waiting for a host' };
  }
  const { reason = '', message = '' } = waitingState(pod);
  if (pod.status?.phase === 'Running') {
    return runningPhase(pod, reason, message);
  }
  return {
    name: preRunningPhase(pod, reason),
    reason: saidReason(reason, 'Scheduled'),
    message: message || `The VM is bound to host ${pod.spec.nodeName}`,
  };
}

/**
 * Returns the phase of a machine that does not run yet. Usually the waiting container states the phase as its reason. If an obstacle delays
 * the machine, the container states the obstacle, and the Pod's condition `berth.dev/Machine` states the phase.
 */
function preRunningPhase(pod: Pod, waiting: string): VMPhase {
  const reported = machineCondition(pod)?.reason;
  const named = (word: string | undefined) => PRE_RUNNING.find((phase) => phase === word);
  return named(waiting) ?? named(reported) ?? 'Scheduled';
}

function runningPhase(pod: Pod, waiting: string, message: string): VMPhaseReport {
  if (waiting === 'Stopped' || waiting === 'Suspended') {
    const shutDown = machineCondition(pod)?.reason === 'GuestShutdown';
    return { name: waiting, reason: shutDown ? 'GuestShutdown' : waiting, message };
  }
  const reported = machineCondition(pod)?.reason;
  const transition = TRANSITIONS.find((phase) => phase === reported);
  if (transition !== undefined) {
    return { name: transition, reason: transition, message };
  }
  return { name: 'Running', reason: 'Running', message: '' };
}
