/**
 * Counts how often a machine has stopped. When a VM stops, its emulators must end. With this count, the operator also notices stops that
 * the status of the VM never showed.
 */
import type { Desired } from '../../api/v1alpha1/machine.ts';
import type { MachineEnd, MachineRecord } from './machine.ts';

/**
 * Returns whether a requested restart or revert is not done yet. `asked` is the time of the last request, and `done` is the time of the
 * last request that was carried out.
 */
export function isPending(asked: string | undefined, done: string | undefined): boolean {
  return asked !== undefined && asked !== done;
}

/** Returns whether a machine that is off must stay off. The result is also true if the wanted state is unreadable. */
export function wantsOff(desired: Desired | undefined): boolean {
  return desired?.power !== 'Running';
}

/** Returns whether a machine that ended by itself must stay off. If the machine must stay off, its VM gets the phase Stopped. */
export function restsAfter(
  { how }: MachineEnd,
  record: Readonly<MachineRecord>,
  desired: Desired | undefined,
): boolean {
  if (desired === undefined || wantsOff(desired)) {
    return true;
  }
  const startsAgain =
    desired.restartPolicy === 'Always' ||
    isPending(desired.restartRequestedAt, record.restartedAt) ||
    isPending(desired.revertRequestedAt, record.revertedAt);
  return how === 'GuestShutdown' && !startsAgain;
}

/**
 * Returns the fields that change in the record of a machine that no longer runs. A second call for the same stop does not count the stop
 * again.
 */
export function offChange(
  { running, stops = 0 }: Readonly<MachineRecord>,
  staysOff: boolean,
): Pick<MachineRecord, 'running' | 'stops'> {
  return { running: false, ...(running && staysOff && { stops: stops + 1 }) };
}
