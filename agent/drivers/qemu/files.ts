/**
 * Creates the files of a QEMU machine and sets the files' owner. Grows the machine's disk, and checks the disk before a program reads it.
 */
import { randomUUID } from 'node:crypto';
import { chmod, lchown, lstat, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import type { RunAs } from '../../../base/exec.ts';
import { sync } from '../../../base/files.ts';
import { type BaseImage, SECTOR_BYTES } from '../../disks/disk.ts';
import { readQcow2 } from '../../disks/qcow2.ts';
import { createQcow2, resizeDisk } from '../../disks/qemuimg.ts';
import { writeSparse } from '../../disks/sparse.ts';
import { SHARED_RUN_AS } from '../../processes/users.ts';
import type { MachineFolder, VmPlan } from '../driver.ts';
import { makeMachineFolder } from '../statefile.ts';
import { diskNode } from './arguments.ts';
import type { GuestPlatform } from './platform.ts';
import { FILES, type MachineFile, diskFile, layersFrom } from './state.ts';

const COPY_BYTES = 1024 * 1024;
/**
 * Nobody writes to a frozen layer. QEMU and qemu-img open it again as another user than root, and other machines' users cannot enter the folder
 * of all machines.
 */
const LAYER_MODE = 0o444;

interface MachineMaterial {
  plan: VmPlan;
  base: BaseImage | undefined;
  platform: GuestPlatform;
}

/**
 * Creates the machine's folder with its disk and the variables of its firmware. Returns the content of the state file, which the caller
 * writes.
 */
export async function createFiles(
  root: string,
  folder: MachineFolder,
  { plan, base, platform }: MachineMaterial,
): Promise<MachineFile> {
  await makeMachineFolder(root, folder.path);
  const diskBytes = await makeDisk(folder, plan, base);
  await makeVariables(folder, platform);
  if (plan.runAs !== undefined) {
    await giveDisk(folder.path, plan.runAs, FILES.disk);
  }
  return {
    version: 1,
    architecture: platform.architecture,
    machineType: platform.machineType,
    intent: 'stop',
    live: false,
    suspended: false,
    fresh: true,
    generation: newGeneration(platform.architecture),
    ...(base === undefined ? {} : { base: { path: base.path, format: base.format } }),
    ...(diskBytes === undefined ? {} : { diskBytes }),
  };
}

/** Returns a generation ID for a guest whose disk or memory is a copy; undefined for arm64, for which QEMU has no such device. */
export function newGeneration(architecture: GuestPlatform['architecture']): string | undefined {
  return architecture === 'amd64' ? randomUUID() : undefined;
}

/**
 * Makes the disk and the variables of the firmware anew, with the content of the layer under the disk, or else of the image. Use this for a
 * guest that has written to its disk and must not be continued. `state` names the file of the disk.
 */
export async function remakeFiles(
  folder: MachineFolder,
  state: MachineFile,
  platform: GuestPlatform,
): Promise<void> {
  await makeOverlay(folder, state);
  const [layer] = layersFrom(state, state.parent);
  const from = layer?.variables;
  await makeVariables(folder, platform, from === undefined ? undefined : join(folder.path, from));
}

/** Makes an empty file for the disk on the layer `parent`, or else on the image. A machine without a disk gets none. */
export async function makeOverlay({ path }: MachineFolder, state: MachineFile): Promise<void> {
  const target = join(path, diskFile(state));
  await rm(target, { force: true });
  if (state.diskBytes === undefined) {
    return;
  }
  const [layer] = layersFrom(state, state.parent);
  await createQcow2(
    target,
    state.diskBytes,
    layer === undefined ? state.base : { path: layer.file, format: 'qcow2' },
  );
}

/** Copies the variables of the firmware to a file for a snapshot. Does nothing if the firmware has none. */
export async function keepVariables({ path }: MachineFolder, name: string): Promise<void> {
  await copySparse(join(path, FILES.variables), join(path, name));
  await sync(join(path, name));
}

/** Makes the variables of the firmware, if the guest has a firmware with variables. They are those of the file `from`. */
export async function makeVariables(
  folder: MachineFolder,
  { firmware }: GuestPlatform,
  from: string | undefined = firmware?.variables,
): Promise<void> {
  if (firmware === undefined || from === undefined) {
    return;
  }
  const variables = join(folder.path, FILES.variables);
  await copySparse(from, variables);
  // Without this sync, the file could be too short after a loss of power, and QEMU would never start the machine again. The disk needs no
  // sync, because qemu-img flushes a disk that it creates.
  await sync(variables);
}

/** Creates the machine's disk. Returns its size in bytes, or undefined if the machine has no disk. */
async function makeDisk(
  folder: MachineFolder,
  plan: VmPlan,
  base: BaseImage | undefined,
): Promise<number | undefined> {
  const path = join(folder.path, FILES.disk);
  await rm(path, { force: true });
  const size = diskBytesOf(plan, base);
  if (size !== undefined) {
    await createQcow2(path, size, base);
  }
  return size;
}

/** Returns the size of a new disk in bytes, or undefined if the machine has no disk. A disk is never smaller than its image. */
export function diskBytesOf(
  { guest: { diskSizeBytes } }: VmPlan,
  base: BaseImage | undefined,
): number | undefined {
  if (base === undefined) {
    return diskSizeBytes;
  }
  // The memory of an image fits only a disk of the image's size. The start makes such a disk larger, with the memory or without it.
  const wanted = base.memory === undefined ? (diskSizeBytes ?? 0) : 0;
  return Math.max(base.virtualSizeBytes, wanted);
}

/**
 * Gives a machine a disk of `sizeBytes` bytes, which is more than it has: grows its disk, or makes a blank disk if it has none. A machine
 * that boots from an ISO has no disk until its VM asks for one. @throws ReasonedError as {@link growDisk} does.
 */
export async function enlargeDisk(
  folder: string,
  state: MachineFile,
  size: { sizeBytes: number; isRoot: boolean },
): Promise<void> {
  await (state.diskBytes === undefined
    ? createQcow2(join(folder, diskFile(state)), size.sizeBytes)
    : growDisk(folder, state, size));
}

/**
 * Grows a machine's disk to `sizeBytes`, rounded up to whole sectors. The disk's header can name a backing file. The function ignores this
 * name, because the hypervisor wrote it and is not trusted. @throws ReasonedError when {@link requireOwnData} refuses the disk.
 */
async function growDisk(
  folder: string,
  state: MachineFile,
  { sizeBytes, isRoot }: { sizeBytes: number; isRoot: boolean },
): Promise<void> {
  const as = await diskReader(folder, state, isRoot);
  await requireOwnData(join(folder, diskFile(state)));
  await resizeDisk({ ...diskNode(state), backing: null }, wholeSectors(sizeBytes), { folder, as });
}

/** Returns the size of a disk in bytes, rounded up to whole sectors, because QEMU and qemu-img refuse other sizes. */
export function wholeSectors(sizeBytes: number): number {
  return Math.ceil(sizeBytes / SECTOR_BYTES) * SECTOR_BYTES;
}

/**
 * Returns the Linux user for programs that read a machine's disk; undefined if the agent is not root. This user is the owner of the disk,
 * normally the machine's own user. If root owns the disk, the function first makes {@link SHARED_RUN_AS} the owner.
 */
export async function diskReader(
  folder: string,
  state: Pick<MachineFile, 'disk'>,
  isRoot: boolean,
): Promise<RunAs | undefined> {
  if (!isRoot) {
    return undefined;
  }
  const disk = diskFile(state);
  const { uid, gid } = await lstat(join(folder, disk));
  if (uid !== 0) {
    return { uid, gid };
  }
  await giveDisk(folder, SHARED_RUN_AS, disk);
  return SHARED_RUN_AS;
}

/**
 * Makes the machine's user the owner of the files to which the machine writes, and removes the rights of all other users. The files can
 * have another owner, for example if an earlier version of the agent made them.
 */
export async function giveDisk(folder: string, { uid, gid }: RunAs, disk: string): Promise<void> {
  for (const name of [disk, FILES.rawDisk, FILES.variables]) {
    // A missing file is no error, because some machines have no disk or no firmware variables.
    await undefinedIf(isMissing, chmod(join(folder, name), 0o600));
    await undefinedIf(isMissing, lchown(join(folder, name), uid, gid));
  }
}

/**
 * Makes root the owner of the frozen layers, so that a guest that takes over its hypervisor later cannot change what snapshots show. To merge
 * layers, the user of the machine gets the lower one back by {@link giveDisk}. The agent must be root.
 */
export async function sealLayers(
  folder: string,
  { layers = [] }: Pick<MachineFile, 'layers'>,
): Promise<void> {
  for (const { file } of layers) {
    // The owner changes first. Otherwise the present one could change the mode again.
    await undefinedIf(isMissing, lchown(join(folder, file), 0, 0));
    await undefinedIf(isMissing, chmod(join(folder, file), LAYER_MODE));
  }
}

/** Copies a file. Zeros become holes in the copy. The file of firmware variables has 64 MiB, and nearly all its bytes are zeros. */
async function copySparse(from: string, to: string): Promise<void> {
  const source = await open(from, 'r');
  const target = await open(to, 'w', 0o600);
  try {
    let position = 0;
    for await (const piece of source.createReadStream({ highWaterMark: COPY_BYTES, autoClose: false })) {
      await writeSparse({ file: target, fresh: true }, piece as Buffer, position);
      position += (piece as Buffer).length;
    }
    await target.truncate(position);
  } finally {
    await source.close();
    await target.close();
  }
}

/** Checks the headers of a machine's disk and of all layers under it. @throws ReasonedError as {@link requireOwnData} does. */
export async function requireOwnDisk(folder: string, state: MachineFile): Promise<void> {
  for (const file of [diskFile(state), ...layersFrom(state, state.parent).map((layer) => layer.file)]) {
    await requireOwnData(join(folder, file));
  }
}

/**
 * Checks the header of a machine's disk. The hypervisor wrote this header, and a hostile guest can control its hypervisor. The header may
 * name a backing file, because the agent gives the right backing file to each program that reads the disk. A missing disk is accepted,
 * because those programs report the missing disk themselves.
 *
 * @throws ReasonedError when the header would make a program read data from another file, or when the header has values that QEMU does not
 * write.
 */
async function requireOwnData(path: string): Promise<void> {
  const file = await undefinedIf(isMissing, open(path, 'r'));
  if (file === undefined) {
    return;
  }
  try {
    const verdict = await readQcow2(file, { backingIgnored: true });
    if ('refusal' in verdict) {
      throw new ReasonedError('DiskInvalid', `The disk of the machine ${verdict.refusal}`);
    }
  } finally {
    await file.close();
  }
}
