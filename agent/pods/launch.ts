/**
 * Prepares the start of a machine, and makes the plans with which a driver creates, starts and resumes it. The start of a VM needs its images,
 * a seed (the documents for the guest and the files for the hypervisor), the network and access to the screen over VNC. The start of an
 * emulator needs none of these but the network, and the machine of its VM must run.
 */
import { constants } from 'node:fs';
import { access, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { INSTALLED_DISK_BYTES } from '../../api/v1alpha1/source.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { isMissing, messageOf, undefinedIf } from '../../base/errors.ts';
import { writeWhole } from '../../base/files.ts';
import type { EmulatorLaunchPlan, LaunchPlan, VmLaunchPlan, VmPlan } from '../drivers/driver.ts';
import { formatOf } from '../images/local/inspect.ts';
import { requireAnswer } from '../images/sources/file.ts';
import type { GuestNetwork } from '../network/network.ts';
import { ownUser } from '../processes/users.ts';
import {
  hasSeed,
  makeDocuments,
  seedDocuments,
  type SeedFiles,
  userDataNotice,
  withoutByteOrderMark,
  writeSeedDocuments,
  writeSeedFiles,
} from '../seed/seed.ts';
import { grantedSize } from './admission.ts';
import { type PodHost, type MachineHost, machineOf } from './host.ts';
import {
  type MachineRecord,
  needed,
  type MachineOperation,
  type Runtime,
  type StartedSize,
} from './machine.ts';
import { connect, connectNamespace } from './network.ts';
import { vncPortOf } from './ports.ts';

/** Name of the file in the machine's folder that contains the VNC password. Because of this file, a later start needs no API server. */
const PASSWORD_FILE = 'vnc.password';

interface Start {
  plan: LaunchPlan;
  /** Change of the machine's record, to be saved before the start. */
  change: Partial<MachineRecord>;
}

/** The seed of a start. */
interface Seed {
  /** Files for the hypervisor. Undefined if the machine has no seed disk. */
  files: SeedFiles | undefined;
  /** Text that tells why the guest may ignore its user data. Undefined if nothing is wrong with it. */
  notice: string | undefined;
}

/** Connects a machine to the network, prepares the files of its start, and returns the plan of the start. */
export async function prepareStart(
  host: PodHost,
  runtime: Runtime,
  operation: MachineOperation,
): Promise<Start> {
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
  return { plan, change: { startedWith: sizeOf(plan, record), seedNotice } };
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

export function machinePlan(host: PodHost, record: MachineRecord, { desired }: MachineOperation): VmPlan {
  // Users can change these fields after the deployment, so their values in `desired` have precedence.
  const vm = { ...needed(record.machine), ...needed(desired) };
  const wanted = vm.diskSizeBytes;
  const diskSizeBytes = diskSizeOf(vm.image, wanted);
  return { guest: { vm, diskSizeBytes, iso: isoOf(record) }, runAs: ownUser(host, record) };
}

/** Returns the size of a disk in bytes. A disk is never smaller than its image. The driver knows the sizes of images that are disks. */
function diskSizeOf(image: Machine['image'], wanted: number | undefined): number | undefined {
  switch (image?.type) {
    case 'empty':
      return Math.max(wanted ?? 0, image.sizeBytes);
    case 'ipsw':
      return wanted ?? INSTALLED_DISK_BYTES;
    default:
      return wanted;
  }
}

function isoOf({ isoPath, machine }: MachineRecord): VmPlan['guest']['iso'] {
  if (isoPath === undefined || machine?.iso === undefined) {
    return undefined;
  }
  return { path: isoPath, format: formatOf(machine.iso, 'ISO') === 'QCOW2' ? 'qcow2' : 'raw' };
}

export function launchPlan(
  host: PodHost,
  record: MachineRecord,
  operation: MachineOperation,
  network: GuestNetwork,
): VmLaunchPlan {
  const size = grantedSize(record, needed(operation.desired));
  return { ...machinePlan(host, record, operation), ...size, network };
}

/** Returns the size with which a machine is started. If the planned disk is smaller than the image, the disk size is that of the image. */
function sizeOf({ cpu, memoryBytes, guest }: VmLaunchPlan, { base }: MachineRecord): StartedSize {
  const ofImage = guest.vm.image?.type === 'ipsw' ? 0 : (base?.virtualSizeBytes ?? 0);
  const diskSizeBytes = Math.max(guest.diskSizeBytes ?? 0, ofImage);
  return { cpu, memoryBytes, ...(diskSizeBytes > 0 && { diskSizeBytes }) };
}

/**
 * Writes the documents and files of a machine's seed into the machine's folder, with the values of this start.
 *
 * @throws ReasonedError when the Secret with the user data cannot be used.
 */
export async function prepareSeed(
  host: PodHost,
  { record, folder }: Runtime,
  { pod, desired }: MachineOperation,
): Promise<Seed> {
  const machine = needed(record.machine);
  const userData = await userDataOf(host, machine, folder);
  const documents = makeDocuments(machine, {
    host: pod?.spec.nodeName ?? '',
    ...grantedSize(record, needed(desired)),
    userData: userData && withoutByteOrderMark(userData),
  });
  const [files] = await Promise.all([
    hasSeed(machine) ? writeSeedFiles(folder.path, documents) : undefined,
    writeSeedDocuments(folder.path, documents),
  ]);
  return { files, notice: userData === undefined ? undefined : userDataNotice(userData) };
}

/**
 * Returns the user data of a machine. If the Secret cannot be read, but an earlier start of the machine had user data, the result is that
 * data. So the machine does not depend on the Secret after its first start.
 */
async function userDataOf(
  host: PodHost,
  { userData, userDataSecretRef, vm: { namespace } }: Machine,
  folder: Runtime['folder'],
): Promise<string | undefined> {
  if (userDataSecretRef === undefined) {
    return userData;
  }
  try {
    return await host.userData({ namespace, ...userDataSecretRef });
  } catch (error) {
    const earlier = await seedDocuments(folder.path);
    if (earlier?.userData === undefined) {
      throw error;
    }
    return earlier.userData;
  }
}

/**
 * Returns the VNC password of a machine; undefined if the machine does not need a password. Call this function before the machine's disk is
 * made. After that, the host cannot report a missing Secret, and the operator does not create the Secret again.
 *
 * @throws ReasonedError `VNCSecretNotFound` when there is no password.
 */
export async function requireVncPassword(host: PodHost, { record }: Runtime): Promise<string | undefined> {
  return vncPortOf(record) === undefined ? undefined : await host.vncPassword(needed(record.machine).vm);
}

/** Writes the password into the folder of a new machine, so that its first start works even if somebody has deleted the Secret by then. */
export async function keepVncPassword({ folder }: Runtime, password: string | undefined): Promise<void> {
  if (password !== undefined) {
    await writeWhole(join(folder.path, PASSWORD_FILE), password);
  }
}

/**
 * Writes the password into the machine's folder, unless the folder already has it. Returns the address and port at which the hypervisor
 * serves the screen.
 */
export async function prepareVnc(
  host: PodHost,
  { record, folder }: Pick<Runtime, 'record' | 'folder'>,
): Promise<VmLaunchPlan['vnc']> {
  const port = vncPortOf(record);
  if (port === undefined) {
    return undefined;
  }
  const path = join(folder.path, PASSWORD_FILE);
  if ((await undefinedIf(isMissing, readFile(path, 'latin1'))) === undefined) {
    await writeWhole(path, await host.vncPassword(needed(record.machine).vm));
  }
  return { address: host.forwardAddress, port, passwordFile: PASSWORD_FILE };
}

/**
 * Connects an emulator to the network and returns the plan of its start.
 *
 * @throws ReasonedError `VMNotRunning` when the paired VM does not run on this host. Also throws the errors of {@link connectNamespace}.
 */
async function prepareEmulator(
  host: PodHost,
  runtime: Runtime,
  operation: MachineOperation,
  emulator: EmulatorMachine,
): Promise<EmulatorLaunchPlan> {
  const { record } = runtime;
  await requireRunningVM(host, emulator);
  const network = await connectNamespace(host, runtime, emulator);
  const size = grantedSize(record, needed(operation.desired));
  return { guest: { emulator }, runAs: ownUser(host, record), ...size, network };
}

/** Checks that the machine of an emulator's VM runs on this host. @throws ReasonedError `VMNotRunning` when the machine does not run. */
async function requireRunningVM(host: MachineHost, { vm }: EmulatorMachine): Promise<void> {
  const found = machineOf(host, vm.uid);
  const isWanted = host.records.ofVM(vm.uid)?.running === true;
  // The VM's machine is not inspected here, because an inspection during a stop or a suspension would undo this step.
  const isRunning = isWanted && (await found?.driver.hasProcess(found.folder)) === true;
  if (!isRunning) {
    const message = `The emulator is waiting for VM ${vm.name}, which is not running on this host`;
    throw new ReasonedError('VMNotRunning', message);
  }
}
