/** Collects the input of the plan for one machine: the state of the machine, and the facts of its host that affect it. */
import { driverOf } from '../drivers/hostdrivers.ts';
import { UnreadableFileError } from '../drivers/statefile.ts';
import type { Host } from './host.ts';
import { type MachineRecord, type Runtime, suspendedBytes, type Wanted } from './machine.ts';
import type { Situation } from './plan.ts';

/**
 * Number of consecutive failed network checks after which a new machine fails. A machine is new if it has never run. One failed check is
 * not enough, because the check can run during a repair of the network.
 */
const FAULTY_CHECKS = 2;

/**
 * Returns the present state of a machine.
 *
 * @throws UnreadableFileError when the system cannot read the machine's state file. A later try can succeed, so the machine does not fail.
 * If the Pod is being deleted, the function does not throw, because the machine must be removed anyway.
 */
export async function inspect(
  host: Pick<Host, 'drivers' | 'emulators'>,
  { record, folder }: Readonly<Runtime>,
  { deletion }: Pick<Wanted, 'deletion'>,
): Promise<Runtime['state']> {
  try {
    return await driverOf(host, record).inspect(folder);
  } catch (error) {
    if (error instanceof UnreadableFileError && (error.isDamaged || deletion !== undefined)) {
      return { kind: 'unreadable', message: error.message };
    }
    throw error;
  }
}

/** Returns the input of the plan for one machine. `suspending` are the machines that are being suspended. */
export function situationOf(
  host: Host,
  { record, state, unseen }: Readonly<Runtime>,
  wanted: Wanted,
  suspending: readonly Readonly<Runtime>[],
): Situation {
  const { monitor, network } = host;
  const given = monitor.faultyChecks >= FAULTY_CHECKS && network.name === 'nat';
  return {
    ...wanted,
    record,
    state,
    unseen,
    fenced: host.fenced(),
    networkFault: given ? monitor.host?.message : undefined,
    diskWish: host.disk.wish(record.uid),
    noRoomToSuspend: noRoomToSuspend(host, record, suspending),
  };
}

/**
 * Returns a message if the host's disk has too little free space to suspend the machine. The space that the machines in `suspending` need
 * does not count as free.
 */
function noRoomToSuspend(
  { disk }: Pick<Host, 'disk'>,
  record: Readonly<MachineRecord>,
  suspending: readonly Readonly<Runtime>[],
): string | undefined {
  const promised = suspending.reduce((sum, other) => sum + suspendedBytes(other.record), 0);
  const needed = suspendedBytes(record);
  return needed <= disk.roomBytes - promised
    ? undefined
    : `its memory needs ${needed} bytes of disk in addition to images.minimumFree, but the host has fewer free bytes`;
}
