/** Compares the machine of a VM with the power state, the restart and the revert that the VM declares. All functions are pure. */
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import { unsuspendedByDisk } from './disktrouble.ts';
import type { ObservedVM } from './observe.ts';
import type { VMPhaseReport } from './phase.ts';
import { machineReport } from '../podbacked/pod.ts';
import { revertObstacle } from './snapshots.ts';

/** Reason and message of the conditions Ready and Reconciling. */
export interface PendingChange {
  readonly reason: SaidReason;
  readonly message: string;
}

type PowerState = 'Running' | 'Stopped' | 'Suspended';

/** Next step of a machine, by the phase of the VM and the declared power state. */
const STEPS: Readonly<Record<PowerState, Readonly<Partial<Record<PowerState, PendingChange>>>>> = {
  Running: {
    Stopped: { reason: 'Stopping', message: 'The VM is to be stopped, and its machine still runs' },
    Suspended: { reason: 'Suspending', message: 'The VM is to be suspended, and its machine still runs' },
  },
  // A machine that is off has no memory to save. Therefore a VM that is to be suspended stays Stopped.
  Stopped: { Running: { reason: 'Starting', message: 'The VM is to run, and its machine is still off' } },
  Suspended: {
    Running: { reason: 'Resuming', message: 'The VM is to run, and its memory is still on disk' },
    Stopped: { reason: 'Stopping', message: 'The VM is to be stopped, and its memory is still on disk' },
  },
};

/** Returns the times of the last restart and of the last revert that the host carried out. */
export function doneStamps({
  vm,
  pod,
}: Pick<ObservedVM, 'vm' | 'pod'>): Pick<VMStatus, 'restartedAt' | 'revertedAt'> {
  const report = machineReport(pod);
  return {
    restartedAt: report.restartedAt ?? vm.status?.restartedAt,
    revertedAt: report.revertedAt ?? vm.status?.revertedAt,
  };
}

/** The part of an observed VM that shows its requests. */
type Requested = Pick<ObservedVM, 'vm' | 'pod' | 'snapshots'>;

/** Returns the request of the VM that its host has not carried out yet. The result is undefined if there is none. */
function pendingRequest(observed: Requested): PendingChange | undefined {
  const { restartRequestedAt, revertRequestedAt } = observed.vm.spec;
  const { restartedAt, revertedAt } = doneStamps(observed);
  if (revertRequestedAt !== undefined && revertRequestedAt !== revertedAt) {
    return { reason: 'Reverting', message: 'The disk of the VM is to be reset' };
  }
  return restartRequestedAt !== undefined && restartRequestedAt !== restartedAt
    ? { reason: 'Restarting', message: 'The VM is to be restarted' }
    : undefined;
}

/**
 * Returns the change that the VM declares and that its machine has not reached yet. The result is undefined in a phase that ends by itself,
 * and for a guest that ended by itself.
 */
export function awaitedChange(observed: ObservedVM, phase: VMPhaseReport): PendingChange | undefined {
  const steps = isPowerState(phase.name) ? STEPS[phase.name] : undefined;
  if (steps === undefined || hasEndedByItself(observed, phase)) {
    return undefined;
  }
  const { powerState = 'Running' } = observed.vm.spec;
  const obstacle =
    powerState === 'Suspended'
      ? (refusedChange(observed, phase) ?? unsuspendedByDisk(observed.pod))
      : undefined;
  return revertObstacle(observed) ?? pendingRequest(observed) ?? obstacle ?? steps[powerState];
}

/**
 * Returns the change that the VM declares and that the hypervisor of its host never makes. The result is undefined if there is none, and
 * while another change is awaited.
 */
export function refusedChange(
  observed: Requested,
  { name }: Pick<VMPhaseReport, 'name'>,
): PendingChange | undefined {
  const { cannotSuspend } = machineReport(observed.pod);
  const isWanted = name === 'Running' && observed.vm.spec.powerState === 'Suspended';
  const isOther = revertObstacle(observed) !== undefined || pendingRequest(observed) !== undefined;
  return isWanted && !isOther && cannotSuspend !== undefined
    ? { reason: 'SuspendUnsupported', message: cannotSuspend }
    : undefined;
}

/** Returns true if the guest shut itself down and its host does not start it again, although the VM is to run. */
export function hasEndedByItself(observed: Requested, phase: VMPhaseReport): boolean {
  const { powerState = 'Running' } = observed.vm.spec;
  const isOff = phase.name === 'Stopped' && phase.reason === 'GuestShutdown';
  return isOff && powerState === 'Running' && !startsAgain(observed);
}

/**
 * Returns true if the host will start a machine again whose guest shut itself down. The TTL must not delete such a VM. With restartPolicy
 * OnFailure, the host does not start it again, because a shutdown by the guest is no failure.
 */
export function startsAgain(observed: Requested): boolean {
  const { spec } = observed.vm;
  const isRefused = revertObstacle(observed) !== undefined;
  return spec.restartPolicy === 'Always' || (pendingRequest(observed) !== undefined && !isRefused);
}

function isPowerState(name: string): name is PowerState {
  return Object.hasOwn(STEPS, name);
}
