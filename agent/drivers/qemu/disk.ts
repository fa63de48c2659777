/** A machine's disk: made, grown, given to its user, and looked at before anybody reads it. */
import type { RunAs } from '../../../base/exec.ts';
import { chmod, lchown, lstat, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../../disks/disk.ts';
import { readQcow2 } from '../../disks/qcow2.ts';
import { createQcow2, resizeDisk } from '../../disks/qemuimg.ts';
import { isMissing } from '../../../base/errors.ts';
import { SHARED_RUN_AS } from '../../machines/users.ts';
import { type MachineFolder, type MachinePlan } from '../driver.ts';
import { FILES } from './state.ts';

const COPY_BYTES = 1024 * 1024;

/** The new disk's size, or undefined where the machine has none. */
export async function makeDisk(
  folder: MachineFolder,
  { guest: { diskSizeBytes } }: MachinePlan,
  base: BaseImage | undefined,
): Promise<number | undefined> {
  const path = join(folder.path, FILES.disk);
  await rm(path, { force: true });
  if (base !== undefined) {
    const size = Math.max(base.virtualSizeBytes, diskSizeBytes ?? 0);
    await createQcow2(path, size, base);
    return size;
  }
  if (diskSizeBytes !== undefined) {
    await createQcow2(path, diskSizeBytes);
  }
  return diskSizeBytes;
}

/** Its header was written by a hypervisor: a name of a backing file in it is not followed. @throws ReasonedError as {@link requireOwnData} does. */
export async function growDisk(
  folder: string,
  node: Record<string, unknown>,
  { sizeBytes, as }: { sizeBytes: number; as: RunAs | undefined },
): Promise<void> {
  await requireOwnData(join(folder, FILES.disk));
  await resizeDisk({ ...node, backing: null }, sizeBytes, { folder, as });
}

/** Who reads a machine's disk, where the agent is root: the machine's own user, also for a disk that an agent made before there were any. */
export async function diskReader(folder: string, isRoot: boolean): Promise<RunAs | undefined> {
  if (!isRoot) {
    return undefined;
  }
  const { uid, gid } = await lstat(join(folder, FILES.disk));
  if (uid !== 0) {
    return { uid, gid };
  }
  await giveDisk(folder, SHARED_RUN_AS);
  return SHARED_RUN_AS;
}

/** What a machine writes to is its own user's and nobody else's; also what an earlier agent made for another user. */
export async function giveDisk(folder: string, { uid, gid }: RunAs): Promise<void> {
  for (const name of [FILES.disk, FILES.variables]) {
    try {
      await chmod(join(folder, name), 0o600);
      await lchown(join(folder, name), uid, gid);
    } catch (error) {
      // A machine may have neither.
      if (!isMissing(error)) {
        throw error;
      }
    }
  }
}

/** Copies a file and leaves its zeros out: firmware variables are 64 MiB, nearly all of them zero. */
export async function copySparse(from: string, to: string): Promise<void> {
  const source = await open(from, 'r');
  const target = await open(to, 'w', 0o600);
  try {
    const buffer = Buffer.alloc(COPY_BYTES);
    const zeros = Buffer.alloc(COPY_BYTES);
    let position = 0;
    for (;;) {
      const { bytesRead } = await source.read(buffer, 0, COPY_BYTES, position);
      if (bytesRead === 0) {
        break;
      }
      const piece = buffer.subarray(0, bytesRead);
      if (!piece.equals(zeros.subarray(0, bytesRead))) {
        await target.write(piece, 0, bytesRead, position);
      }
      position += bytesRead;
    }
    await target.truncate(position);
  } finally {
    await source.close();
    await target.close();
  }
}

/**
 * A machine's disk was written by its hypervisor, which a guest may have taken over. The backing file it names is of no
 * account, readers are given ours; what is missing they refuse themselves.
 *
 * @throws ReasonedError when its header would make a reader open another file for the data, or is none that QEMU writes.
 */
export async function requireOwnData(path: string): Promise<void> {
  let file: Awaited<ReturnType<typeof open>>;
  try {
    file = await open(path, 'r');
  } catch (error) {
    if (isMissing(error)) {
      return;
    }
    throw error;
  }
  try {
    const verdict = await readQcow2(file, { backingIgnored: true });
    if ('refusal' in verdict) {
      throw new ReasonedError('DiskInvalid', `the disk of the machine ${verdict.refusal}`);
    }
  } finally {
    await file.close();
  }
}
