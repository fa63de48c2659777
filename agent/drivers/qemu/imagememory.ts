/**
 * Saves the memory of a running machine for an image, from which other machines start. The memory and the disk are of one moment: the guest
 * is paused once, while the hypervisor writes its whole memory as a stream. A clone of the machine continues from the stream without a network,
 * and prepares itself. Its memory and the state of its devices become two files of the image. Later machines share the memory until they write to
 * it. A second clone proves the image.
 */
import { chmod, chown, copyFile, mkdir, rename, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, messageOf, undefinedIf } from '../../../base/errors.ts';
import { removeTrees, sync } from '../../../base/files.ts';
import { timestamp } from '../../../base/time.ts';
import type { MemoryFiles } from '../../disks/disk.ts';
import { createQcow2 } from '../../disks/qemuimg.ts';
import { killByArgument } from '../../processes/process.ts';
import { type MachineFolder, WarmStartRefused } from '../driver.ts';
import { processMark } from './arguments.ts';
import { makeVariables, newGeneration, wholeSectors } from './files.ts';
import { goOn, type Hypervisor } from './hypervisor.ts';
import type { MachineContext, MachineStart } from './launch.ts';
import { QemuMachine } from './machine.ts';
import { saveMemory } from './memory.ts';
import { type LaunchRecord, refused, requireSavable, type SavableLaunch } from './memorychecks.ts';
import { memoryKey, type MemorySource } from './memorykey.ts';
import type { GuestPlatform } from './platform.ts';
import type { QmpConnection } from './qmp.ts';
import { renewGuest } from './renewal.ts';
import { prepareGuest } from './savehooks.ts';
import { prepareSnapshot, takeSnapshot } from './snapshot.ts';
import { FILES, type LayerMemory, type MachineFile, type QemuState } from './state.ts';

const STREAM = 'stream';
/** Folder of the clone that proves the image, in the folder of the other clone. */
const PROOF = 'proof';
/** Host name of the proof's guest, by which the programs of its owner recognise it. */
const PROOF_NAME = 'berth-proof';
const PROOF_MAC = '02:00:00:00:00:01';
/** Network interface of a clone. The kernel of the host puts a number in place of `%d`. */
const INTERFACE = 'berthm%d';
/**
 * Longest pause of a guest while its memory is written. Its programs and their connections bear a pause of this length. At 20 MB/s, the memory of a
 * guest with 1 GiB is written in this time.
 */
const PAUSE_LIMIT_MILLISECONDS = 60_000;
/** Files of an image's memory can be read by root alone, and nobody writes to them. */
const FILE_MODE = 0o400;
/** The hypervisor of a clone is not root when it connects to the socket for the state, so it must be able to enter its folder. */
const FOLDER_MODE = 0o711;

/** Returns the folder of the first clone. Both clones have the same uid, because one follows the other. */
function folderOf({ path, uid }: MachineFolder): MachineFolder {
  return { path: join(path, FILES.imageMemory), uid: `${uid}-memory` };
}

interface Saving extends Pick<LaunchRecord, 'memoryBytes' | 'runAs'> {
  qmp: QmpConnection;
  file: MachineFile;
  state: QemuState;
  signal: AbortSignal;
}

/** Pauses the guest, writes its memory as a stream, takes a snapshot of its disk, and lets the guest continue. */
export async function saveStream(
  folder: MachineFolder,
  { qmp, file, state, memoryBytes, runAs, signal }: Saving,
): Promise<void> {
  await whilePaused(qmp, state, async () => {
    await writeStream(folder, qmp, { memoryBytes, signal });
    await takeSnapshot(qmp, await prepareSnapshot(qmp, folder.path, { file, runAs, afterStream: true }));
  });
}

/** Runs `work` while the guest is paused, and lets the guest continue, also after an error. */
export async function whilePaused(
  qmp: QmpConnection,
  state: QemuState,
  work: () => Promise<void>,
): Promise<void> {
  await qmp.execute('stop');
  try {
    await work();
  } finally {
    await goOn(qmp, state);
  }
}

/**
 * Writes the memory of a paused guest as a stream into the folder of {@link makeStreamFolder}.
 *
 * @throws ReasonedError `MemoryNotSaved` when the guest would be paused for too long; the signal's reason when the signal aborts.
 */
export async function writeStream(
  { path }: MachineFolder,
  qmp: QmpConnection,
  { memoryBytes, signal }: Pick<Saving, 'memoryBytes' | 'signal'>,
): Promise<void> {
  const limit = AbortSignal.timeout(PAUSE_LIMIT_MILLISECONDS);
  try {
    const either = AbortSignal.any([signal, limit]);
    await saveMemory(path, qmp, memoryBytes, { file: join(FILES.imageMemory, STREAM), signal: either });
  } catch (error) {
    signal.throwIfAborted();
    if (limit.aborted) {
      const seconds = PAUSE_LIMIT_MILLISECONDS / 1000;
      throw refused(`The guest would be paused for more than ${seconds} s while it is written`);
    }
    throw error;
  }
}

/**
 * Makes the files of a snapshot's memory from the stream, with these names in the machine's folder. Another process reads the stream, and its
 * guest does not run. So the memory fits the disk of the moment at which the stream was written. Returns the files with all that a later start
 * from them must have in common with the machine.
 *
 * @throws ReasonedError `MemoryNotSaved`; the signal's reason when the signal aborts.
 */
export async function convertStream(
  folder: MachineFolder,
  {
    file,
    platform,
    files,
    signal,
  }: Pick<Preparation, 'file' | 'platform' | 'signal'> & { files: MemoryNames },
  context: MachineContext,
): Promise<Omit<LayerMemory, 'savedAt'>> {
  const own = folderOf(folder);
  const launched = requireSavable(file);
  const made = { ram: join(own.path, 'ram'), state: join(own.path, 'state') };
  await copySeed(folder, own, launched);
  await named('The memory of the VM was not kept', signal, async () => {
    // The process has a disk of the same size, because the guest knows it. Nobody reads it.
    await writeFile(preparedDisk(folder), '');
    await truncate(preparedDisk(folder), wholeSectors(file.diskBytes ?? 0));
    await readStream(own, { file, platform, signal }, { launched, made, context });
  });
  for (const name of ['ram', 'state'] as const) {
    await rename(made[name], join(folder.path, files[name]));
  }
  await sync(folder.path);
  const { cpu, memoryBytes } = launched;
  return { ...files, cpu, memoryBytes, key: await keyOf(own, file, platform) };
}

/** Makes the folder in which {@link saveStream} writes the stream. Removes what an earlier save has left. */
export async function makeStreamFolder(
  folder: MachineFolder,
  context: Pick<MachineContext, 'cgroups'>,
): Promise<void> {
  await dropImageMemory(folder, context);
  await mkdir(folderOf(folder).path, { mode: FOLDER_MODE });
}

/** Files of an image with memory. All of them are on the file system of the machine's folder. */
interface ImageFiles extends Pick<MemoryFiles, 'ram' | 'state'> {
  disk: string;
}

/** Names of the files of a snapshot's memory. */
type MemoryNames = Pick<LayerMemory, 'ram' | 'state'>;

interface Preparation {
  /** State file of the saved machine. */
  file: MachineFile;
  platform: GuestPlatform;
  files: ImageFiles;
  /** Time of the save in milliseconds since the epoch. */
  savedAt: number;
  signal: AbortSignal;
  onStep: ((what: string) => void) | undefined;
}

/** Returns the path to which the copy of the disk belongs, before {@link prepareImage} is called. */
export function preparedDisk(folder: MachineFolder): string {
  return join(folderOf(folder).path, FILES.rawDisk);
}

/**
 * Makes the files of an image with memory, at the paths `files`, from the stream and the copy of the disk. A clone of the machine runs its save
 * hooks, and its memory and disk become those of the image. Then another clone is started from them. No clone has a network, and none is
 * left. Returns the files with all that a start from them must have in common with this machine.
 *
 * @throws ReasonedError `SaveHookFailed` or `MemoryNotSaved`; the signal's reason when the signal aborts.
 */
export async function prepareImage(
  folder: MachineFolder,
  preparation: Preparation,
  context: MachineContext,
): Promise<MemoryFiles> {
  const { file, platform, files, savedAt, signal, onStep } = preparation;
  const own = folderOf(folder);
  const launched = requireSavable(file);
  await copySeed(folder, own, launched);
  const made = { disk: preparedDisk(folder), ram: join(own.path, 'ram'), state: join(own.path, 'state') };
  onStep?.('A clone of the VM without a network runs the save hooks');
  await named('A clone of the VM was not prepared', signal, async () => {
    await runClone(own, preparation, { launched, made, context });
  });
  onStep?.('Another clone proves that a VM starts from the memory');
  await named('A VM does not start from the memory', signal, async () => {
    await prove(own, preparation, { launched, made, context });
  });
  for (const name of ['ram', 'state', 'disk'] as const) {
    await rename(made[name], files[name]);
  }
  const { cpu, memoryBytes } = launched;
  const key = await keyOf(own, file, platform);
  return { ram: files.ram, state: files.state, cpu, memoryBytes, key, savedAt: timestamp(savedAt) };
}

/** Returns the key of the memory of a machine with this state file. */
async function keyOf({ uid }: MachineFolder, file: MachineFile, platform: GuestPlatform): Promise<string> {
  const launched = requireSavable(file);
  const { cpu, memoryBytes, runAs, accelerator } = launched;
  const sizes = { cpu, memoryBytes, runAs, incoming: false };
  const started = { ...platform, accelerator };
  return await memoryKey({ uid, plan: planOf(launched), state: file, platform: started, ...sizes });
}

/** Copies the files of a machine's seed, which its clone must have, too. */
async function copySeed(from: MachineFolder, to: MachineFolder, { seed }: LaunchRecord): Promise<void> {
  for (const name of [seed?.disk, seed?.ignition].filter((one) => one !== undefined)) {
    await copyFile(join(from.path, name), join(to.path, name));
  }
}

/** Runs one part of the work. Its errors get the beginning `what`. */
async function named(what: string, signal: AbortSignal, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof ReasonedError && error.reason === 'SaveHookFailed') {
      throw error;
    }
    throw new ReasonedError('MemoryNotSaved', `${what}: ${messageOf(error)}`, { cause: error });
  }
}

/** What both clones have in common. */
interface Clones {
  launched: SavableLaunch;
  made: ImageFiles;
  context: MachineContext;
}

/** Runs the clone from the stream. Its memory and its disk are in the files `made` afterwards. */
async function runClone(own: MachineFolder, preparation: Preparation, clones: Clones): Promise<void> {
  const { signal } = preparation;
  await readStream(
    own,
    preparation,
    clones,
    async ({ guestAgent }) => await prepareGuest(guestAgent, signal),
  );
  if (clones.context.isRoot) {
    await chown(clones.made.disk, 0, 0);
  }
}

/** Reads the stream in another process, and writes its memory into the files `made`. The guest runs only for `prepare`. */
async function readStream(
  own: MachineFolder,
  { file, platform, signal }: Pick<Preparation, 'file' | 'platform' | 'signal'>,
  { launched, made, context }: Omit<Clones, 'made'> & { made: Pick<ImageFiles, 'ram' | 'state'> },
  prepare?: (hypervisor: Hypervisor) => Promise<void>,
): Promise<void> {
  await makeVariables(own, platform);
  await withMachine(own, context, async (machine) => {
    const stream = join(own.path, STREAM);
    // A new generation ID makes the random numbers of the hooks differ from those of the saved guest.
    await machine.state.replace({ ...stillOf(file, platform), launched, base: undefined, isRaw: true });
    await machine.prepareMemory(planOf(launched), platform, {
      stream,
      ram: made.ram,
      state: made.state,
      ...(prepare && { prepare }),
      signal,
    });
    await rm(stream);
  });
  for (const path of [made.ram, made.state]) {
    await chmod(path, FILE_MODE);
  }
}

/** Starts a machine from the files `made`, waits until its guest has an identity of its own, and ends it. */
async function prove(
  own: MachineFolder,
  { file, platform, signal }: Preparation,
  { launched, made, context }: Clones,
): Promise<void> {
  const proof = { path: join(own.path, PROOF), uid: own.uid };
  await mkdir(proof.path, { mode: FOLDER_MODE });
  const base = { path: made.disk, format: 'raw' } as const;
  await makeVariables(proof, platform);
  const { diskBytes = 0 } = file;
  await createQcow2(join(proof.path, FILES.disk), diskBytes, base);
  const { accelerator, devices } = launched;
  await copySeed(own, proof, launched);
  await withMachine(proof, context, async (machine) => {
    await machine.state.replace({ ...stillOf(file, platform), base });
    await requireMemoryFiles({ ...made, memoryBytes: launched.memoryBytes }, 'image');
    const macAddress = devices.network === 'tap' ? PROOF_MAC : '';
    const identity = { hostName: PROOF_NAME, sshAuthorizedKeys: [], macAddress };
    await machine.startFromMemory(planOf(launched), platform, {
      launched,
      memory: made,
      renew: async ({ guestAgent }) => await renewGuest(guestAgent, identity, { accelerator, signal }),
      signal,
      staysOffline: true,
    });
    await machine.end();
  });
}

/** Calls `use` with a machine of this folder, and closes it afterwards. Nobody is told of its changes. */
async function withMachine(
  folder: MachineFolder,
  context: MachineContext,
  use: (machine: QemuMachine) => Promise<void>,
): Promise<void> {
  const machine = new QemuMachine(folder, { ...context, changed: () => undefined, follow: () => undefined });
  try {
    await use(machine);
  } finally {
    machine.close();
  }
}

/** Returns the content of the state file of a machine that is like the saved one, and has no process. */
function stillOf(file: MachineFile, { architecture }: GuestPlatform): MachineFile {
  const generation = newGeneration(architecture);
  // Snapshots stay with the machine. Its clones have a disk of their own, without layers.
  const { disk: _disk, parent: _parent, layers: _layers, node: _node, switching: _switching, ...rest } = file;
  return { ...rest, generation, live: false, process: undefined, forwards: undefined, paused: false };
}

/** Ends the clones of the machine, if any, and removes their folders. */
export async function dropImageMemory(
  folder: MachineFolder,
  { cgroups }: Pick<MachineContext, 'cgroups'>,
): Promise<void> {
  const own = folderOf(folder);
  await killByArgument(processMark(own.uid));
  await cgroups.remove(own.uid);
  await removeTrees([own.path]);
}

const REPAIR: Readonly<Record<MemorySource, string>> = {
  image: 'Remove the image from the cache of the host',
  snapshot: 'Take another snapshot',
};

/**
 * Checks that the files with the memory of an image or a snapshot are there and complete. QEMU would make a missing file itself, full of zeros, and later
 * machines would start from it.
 *
 * @throws WarmStartRefused when a file is missing or has another size.
 */
export async function requireMemoryFiles(
  { ram, state, memoryBytes }: Pick<MemoryFiles, 'ram' | 'state' | 'memoryBytes'>,
  source: MemorySource,
): Promise<void> {
  const [ramBytes, stateBytes] = [await sizeOf(ram), await sizeOf(state)];
  if (ramBytes !== memoryBytes || stateBytes === 0) {
    throw new WarmStartRefused(
      'NotSupported',
      `The files with the memory of the ${source} are missing or incomplete on the host. ${REPAIR[source]}`,
    );
  }
}

/** Returns the size of a file in bytes; 0 if there is no such file. */
async function sizeOf(path: string): Promise<number> {
  return (await undefinedIf(isMissing, stat(path)))?.size ?? 0;
}

/** Removes the files of an image's memory, for example after a failed copy of the disk. */
export async function removeMemoryFiles({ ram, state }: Pick<MemoryFiles, 'ram' | 'state'>): Promise<void> {
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
