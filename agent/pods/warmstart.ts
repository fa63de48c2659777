/**
 * Starts a machine, from the memory of its image or of the snapshot to which it was reset if that is possible, and else from its disk. Both give the same machine. So whatever prevents
 * the first is no failure, and only the condition `berth.dev/WarmStart` of the Pod tells it.
 */
import { type LaunchPlan, type VmLaunchPlan, WarmStartRefused } from '../drivers/driver.ts';
import { driverOf, driverOfVM } from '../drivers/hostdrivers.ts';
import type { PodHost } from './host.ts';
import type { MachineOperation, MachineRecord, Runtime, WarmStart } from './machine.ts';

/** Starts the machine. Returns what the condition tells of this start; undefined if the image of the machine has no memory. */
export async function startMachine(
  host: PodHost,
  { record, folder }: Runtime,
  plan: LaunchPlan,
  { abort }: MachineOperation,
): Promise<WarmStart | undefined> {
  if (record.fresh !== true) {
    // The disk has changed, so it no longer fits the memory. The condition goes on to tell how this guest began.
    await driverOf(host, record).start(folder, plan, abort.signal);
    return record.warmStart;
  }
  const outcome = await startWarm(host, { record, folder }, plan, abort.signal);
  if (outcome?.reason !== 'Renewed') {
    // If the agent dies just behind the start, the record tells how the guest began.
    host.records.update(record, { warmStart: outcome });
    await driverOf(host, record).start(folder, plan, abort.signal);
  }
  return outcome;
}

/** Starts the machine from the memory that fits its fresh disk. Returns why not if it does not start from it; undefined if there is no memory. */
async function startWarm(
  host: PodHost,
  { record, folder }: Pick<Runtime, 'record' | 'folder'>,
  plan: LaunchPlan,
  signal: AbortSignal,
): Promise<WarmStart | undefined> {
  const isSnapshot = record.hasSnapshotMemory === true;
  const obstacle = isSnapshot ? coldWanted(record) : obstacleOf(record);
  const memory = isSnapshot ? undefined : record.base?.memory;
  if (obstacle !== undefined || (memory === undefined && !isSnapshot)) {
    return obstacle;
  }
  try {
    await driverOfVM(host, record).startFromMemory(folder, plan as VmLaunchPlan, memory, signal);
    return { reason: 'Renewed' };
  } catch (error) {
    if (!(error instanceof WarmStartRefused)) {
      throw error;
    }
    return { reason: error.reason, message: error.message };
  }
}

/** Returns why a machine whose image has memory boots from its disk; undefined if it can start from memory, or its image has no memory. */
function obstacleOf(record: Readonly<MachineRecord>): WarmStart | undefined {
  const { base, machine } = record;
  if (base?.untrustedMemory === true) {
    return {
      reason: 'MemoryNotTrusted',
      message: 'The image has memory, but it is not from the image storage of the cluster',
    };
  }
  if (base?.memory === undefined || machine === undefined) {
    return undefined;
  }
  const wanted = coldWanted(record);
  if (wanted !== undefined) {
    return wanted;
  }
  if (machine.userData !== undefined || machine.userDataSecretRef !== undefined) {
    return {
      reason: 'NotSupported',
      message: 'The VM has user data, which a guest reads only when it boots',
    };
  }
  return undefined;
}

/** Returns why the machine boots if its VM asks for it. A guest of a snapshot has read its user data already, so they are no obstacle. */
function coldWanted({ machine }: Readonly<MachineRecord>): WarmStart | undefined {
  return machine?.start === 'Cold' ? { reason: 'ColdWanted', message: 'The VM has start: Cold' } : undefined;
}
