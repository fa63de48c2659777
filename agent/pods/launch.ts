/** Makes the plans with which a driver creates, starts and resumes a machine. */
import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { dirname } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import type { LaunchPlan, VmLaunchPlan, VmPlan } from '../drivers/driver.ts';
import { requireAnswer } from '../images/sources/file.ts';
import { formatOf } from '../images/local/inspect.ts';
import type { GuestNetwork } from '../network/network.ts';
import { ownUser } from '../processes/users.ts';
import { prepareEmulator } from './emulator.ts';
import type { Host } from './host.ts';
import { type MachineRecord, needed, type Operation, type Runtime, type StartedSize } from './machine.ts';
import { connect } from './network.ts';
import { grantedSize } from './resize.ts';
import { prepareSeed } from './seed.ts';
import { prepareVnc } from './vnc.ts';

interface Start {
  plan: LaunchPlan;
  /** Change of the machine's record, to be saved before the start. */
  change: Partial<MachineRecord>;
}

/** Connects a machine to the network, prepares the files of its start, and returns the plan of the start. */
export async function prepareStart(host: Host, runtime: Runtime, operation: Operation): Promise<Start> {
  const { record } = runtime;
  if (record.emulator !== undefined) {
    const plan = await prepareEmulator(host, runtime, operation, record.emulator);
    const { cpu, memoryBytes } = plan;
    return { plan, change: { startedWith: { cpu, memoryBytes }, booted: false } };
  }
  if (record.everRan) {
    await requireImages(record, operation.abort.signal);
  }
  const { files: seed, notice: seedNotice } = await prepareSeed(host, runtime, operation);
  const network = await connect(host, runtime);
  const vnc = await prepareVnc(host, runtime);
  const plan = { ...launchPlan(host, record, operation, network), seed, vnc };
  return { plan, change: { startedWith: sizeOf(plan, record), seeded: seed !== undefined, seedNotice } };
}

/**
 * Checks that the machine's images can be read. An image can be in a shared folder, and the folder's file server can be down.
 *
 * @throws Error without a reason when an image cannot be read. The agent then tries the start again. Without this check, the
 * hypervisor would refuse the start, which counts as a crash or failure of the machine.
 */
async function requireImages({ base, isoPath }: Readonly<MachineRecord>, signal: AbortSignal): Promise<void> {
  const paths = [base?.path, isoPath].filter((path) => path !== undefined);
  for (const path of paths) {
    try {
      await requireAnswer(dirname(path), signal);
      await access(path, constants.R_OK);
    } catch (error) {
      signal.throwIfAborted();
      const message = `This host cannot read an image of the machine: ${messageOf(error)}`;
      throw new Error(message, { cause: error });
    }
  }
}

export function machinePlan(host: Host, record: MachineRecord, { desired }: Operation): VmPlan {
  const vm = needed(record.machine);
  const wanted = needed(desired).diskSizeBytes ?? vm.diskSizeBytes;
  // A disk is never smaller than its image. The driver knows the sizes of other images, but an empty image has no file.
  const diskSizeBytes = vm.image?.type === 'empty' ? Math.max(wanted ?? 0, vm.image.sizeBytes) : wanted;
  return { guest: { vm, diskSizeBytes, iso: isoOf(record) }, runAs: ownUser(host, record) };
}

function isoOf({ isoPath, machine }: MachineRecord): VmPlan['guest']['iso'] {
  if (isoPath === undefined || machine?.iso === undefined) {
    return undefined;
  }
  return { path: isoPath, format: formatOf(machine.iso, 'ISO') === 'QCOW2' ? 'qcow2' : 'raw' };
}

export function launchPlan(
  host: Host,
  record: MachineRecord,
  operation: Operation,
  network: GuestNetwork,
): VmLaunchPlan {
  const size = grantedSize(record, needed(operation.desired));
  return { ...machinePlan(host, record, operation), ...size, network };
}

/** Returns the size with which a machine is started. If the planned disk is smaller than the image, the disk size is that of the image. */
function sizeOf({ cpu, memoryBytes, guest }: VmLaunchPlan, { base }: MachineRecord): StartedSize {
  const diskSizeBytes = Math.max(guest.diskSizeBytes ?? 0, base?.virtualSizeBytes ?? 0);
  return { cpu, memoryBytes, ...(diskSizeBytes > 0 && { diskSizeBytes }) };
}
