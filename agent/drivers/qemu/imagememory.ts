/**
 * Saves the memory of a running machine for an image, from which other machines start. The memory and the disk are of one moment: the guest
 * is paused once, while the hypervisor writes its whole memory as a stream. A second hypervisor, whose guest never runs, then turns the stream
 * into the two files of an image: the memory, which later machines share until they write to it, and the state of the devices.
 */
import { chmod, copyFile, mkdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { removeTrees } from '../../../base/files.ts';
import { timestamp } from '../../../base/time.ts';
import type { MemoryFiles } from '../../disks/disk.ts';
import { createQcow2 } from '../../disks/qemuimg.ts';
import { killByArgument } from '../../processes/process.ts';
import { type MachineFolder, WarmStartRefused } from '../driver.ts';
import { processMark } from './arguments.ts';
import { makeVariables } from './files.ts';
import { goOn } from './hypervisor.ts';
import type { MachineContext, MachineStart } from './launch.ts';
import { QemuMachine } from './machine.ts';
import { saveMemory } from './memory.ts';
import { memoryKey } from './memorykey.ts';
import type { GuestPlatform } from './platform.ts';
import type { QmpConnection } from './qmp.ts';
import { prepareSnapshot, takeSnapshot } from './snapshot.ts';
import { FILES, type MachineFile, type QemuState } from './state.ts';

const STREAM = 'stream';
/** Network interface of the second hypervisor. The kernel of the host puts a number in place of `%d`. */
const INTERFACE = 'berthm%d';
/** Files of an image's memory can be read by root alone, and nobody writes to them. */
const FILE_MODE = 0o400;
/** The second hypervisor is not root when it connects to the socket for the state, so it must be able to enter its folder. */
const FOLDER_MODE = 0o711;

type Launched = NonNullable<MachineFile['launched']>;
/** Values of a machine's last start, with its devices. */
type SavableLaunch = Launched & { devices: NonNullable<Launched['devices']> };
type Files = Pick<MemoryFiles, 'ram' | 'state'>;

/** Returns the folder of the second hypervisor. */
function folderOf({ path, uid }: MachineFolder): MachineFolder {
  return { path: join(path, FILES.imageMemory), uid: `${uid}-memory` };
}

/**
 * Checks that the memory of a machine can become that of an image.
 *
 * @throws ReasonedError `MemoryNotSaved` with the reason why not.
 */
export function requireSavable({ launched, paused }: MachineFile): SavableLaunch {
  const { devices } = launched ?? {};
  if (launched === undefined || devices === undefined) {
    throw refused('An earlier version of the agent started the machine. Start the VM again');
  }
  if (devices.iso) {
    throw refused('The VM has an ISO. Make a VM without it');
  }
  if (paused === true) {
    throw refused('The guest is paused, because the disk of its host is full');
  }
  return { ...launched, devices };
}

function refused(why: string): ReasonedError {
  return new ReasonedError('MemoryNotSaved', `The memory of the VM cannot be saved. ${why}`);
}

interface Saving extends Pick<Launched, 'memoryBytes' | 'runAs'> {
  qmp: QmpConnection;
  state: QemuState;
}

/** Pauses the guest, writes its memory as a stream, takes a snapshot of its disk, and lets the guest continue. */
export async function saveStream(
  { path }: MachineFolder,
  { qmp, state, memoryBytes, runAs }: Saving,
): Promise<void> {
  await qmp.execute('stop');
  try {
    await saveMemory(path, qmp, memoryBytes, { file: join(FILES.imageMemory, STREAM) });
    await takeSnapshot(qmp, await prepareSnapshot(qmp, path, { runAs, afterStream: true }));
  } finally {
    await goOn(qmp, state);
  }
}

/** Makes the folder in which {@link saveStream} writes the stream. Removes what an earlier save has left. */
export async function makeStreamFolder(folder: MachineFolder): Promise<void> {
  await dropImageMemory(folder);
  await mkdir(folderOf(folder).path, { mode: FOLDER_MODE });
}

/**
 * Turns the stream into the files of an image, at the paths `files`, which must be on the file system of the machine's folder. Returns the
 * files with all that a start from them must have in common with this machine.
 */
export async function splitStream(
  folder: MachineFolder,
  {
    file,
    platform,
    files,
    savedAt,
  }: { file: MachineFile; platform: GuestPlatform; files: Files; savedAt: number },
  context: MachineContext,
): Promise<MemoryFiles> {
  const launched = requireSavable(file);
  const own = folderOf(folder);
  const { cpu, memoryBytes, seed, accelerator } = launched;
  if (file.diskBytes !== undefined) {
    await createQcow2(join(own.path, FILES.disk), file.diskBytes);
  }
  await makeVariables(own, platform);
  for (const name of [seed?.disk, seed?.ignition].filter((one) => one !== undefined)) {
    await copyFile(join(folder.path, name), join(own.path, name));
  }
  const machine = new QemuMachine(own, { ...context, changed: () => undefined, follow: () => undefined });
  const { base: _, ...state } = file;
  await machine.state.replace({ ...state, launched, live: false, process: undefined });
  const plan = planOf(launched);
  const [ram, devices] = [join(own.path, 'ram'), join(own.path, 'state')];
  try {
    await machine.splitMemory(plan, platform, { stream: join(own.path, STREAM), ram, state: devices });
  } finally {
    machine.close();
  }
  for (const [from, to] of [
    [ram, files.ram],
    [devices, files.state],
  ] as const) {
    await chmod(from, FILE_MODE);
    await rename(from, to);
  }
  const started = { ...platform, accelerator };
  const sizes = { cpu, memoryBytes, runAs: launched.runAs, incoming: false };
  const key = await memoryKey({ uid: own.uid, plan, state: file, platform: started, ...sizes });
  return { ...files, cpu, memoryBytes, key, savedAt: timestamp(savedAt) };
}

/** Ends the second hypervisor, if any, and removes its folder. */
export async function dropImageMemory(folder: MachineFolder): Promise<void> {
  const own = folderOf(folder);
  await killByArgument(processMark(own.uid));
  await removeTrees([own.path]);
}

/**
 * Checks that the files with the memory of an image are there and complete. QEMU would make a missing file itself, full of zeros, and later
 * machines would start from it.
 *
 * @throws WarmStartRefused when a file is missing or has another size.
 */
export async function requireMemoryFiles({ ram, state, memoryBytes }: MemoryFiles): Promise<void> {
  const [ramBytes, stateBytes] = [await sizeOf(ram), await sizeOf(state)];
  if (ramBytes !== memoryBytes || stateBytes === 0) {
    throw new WarmStartRefused(
      'NotSupported',
      'The files with the memory of the image are missing or incomplete on the host. Remove the image from the cache of the host',
    );
  }
}

/** Returns the size of a file in bytes; 0 if there is no such file. */
async function sizeOf(path: string): Promise<number> {
  return (await undefinedIf(isMissing, stat(path)))?.size ?? 0;
}

/** Removes the files of an image's memory, for example after a failed copy of the disk. */
export async function removeMemoryFiles({ ram, state }: Files): Promise<void> {
  await rm(ram, { force: true });
  await rm(state, { force: true });
}

/** Returns a plan with the devices of a machine. Its identity is of no importance, because the stream contains that of the guest. */
function planOf(launched: SavableLaunch): MachineStart['plan'] {
  const { cpu, memoryBytes, runAs, devices } = launched;
  const macAddress = '02:00:00:00:00:00';
  const hardware = { uuid: '00000000-0000-4000-8000-000000000000', serialNumber: 'memory', macAddress };
  const card = { macAddress, address: undefined };
  return {
    cpu,
    memoryBytes,
    runAs,
    guest: { vm: { hardware, vnc: { enabled: devices.vnc } }, iso: undefined },
    network:
      devices.network === 'tap'
        ? { ...card, kind: 'tap', device: INTERFACE }
        : { ...card, kind: 'user', hostAddress: '127.0.0.1', ports: [] },
  };
}
