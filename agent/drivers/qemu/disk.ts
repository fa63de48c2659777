/** qemu-img, with the format always said by us, and held to limits: it reads files that strangers made. */
import { execFile } from 'node:child_process';
import { chmod, lchown, open } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { isMissing } from '../../errors.ts';
import { FILES } from '../../machines/folder.ts';
import type { RunAs } from '../../machines/users.ts';
import { StartError } from '../driver.ts';

const execute = promisify(execFile);

/** A new or grown qcow2 is metadata only: some 14 ms for 100 GiB. */
const METADATA_TIMEOUT_MILLISECONDS = 30_000;
const OUTPUT_LIMIT_BYTES = 1024 * 1024;
const COPY_BYTES = 1024 * 1024;
/** The fields up to the incompatible features (from version 3 on), of which bit 2 says that the data lie in another file. */
const QCOW2_HEADER_BYTES = 80;
const QCOW2_DATA_FILE = 1 << 2;

/** A qcow2 at `path` that shows `base` and keeps what is written to it. */
export async function createOverlay(
  path: string,
  base: { path: string; format: 'qcow2' | 'raw' },
  sizeBytes: number,
): Promise<void> {
  // -u: the base was checked when it came into the store, and its size is given.
  const parameters = ['create', '-q', '-u', '-f', 'qcow2', '-F', base.format, '-b', base.path, path];
  await qemuImg([...parameters, String(sizeBytes)]);
}

export async function createBlank(path: string, sizeBytes: number): Promise<void> {
  await qemuImg(['create', '-q', '-f', 'qcow2', path, String(sizeBytes)]);
}

export async function growDisk(path: string, sizeBytes: number): Promise<void> {
  await qemuImg(['resize', '-q', '-f', 'qcow2', path, String(sizeBytes)]);
}

/** What a machine writes to is its own user's and nobody else's; also what an earlier agent made for another user. */
export async function giveDisk(folder: string, { uid, gid }: RunAs): Promise<void> {
  for (const name of [FILES.disk, FILES.variables]) {
    try {
      await chmod(join(folder, name), 0o600);
      await lchown(join(folder, name), uid, gid);
    } catch (error) {
      // A machine may have neither.
      if (!isMissing(error)) throw error;
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
      if (bytesRead === 0) break;
      const piece = buffer.subarray(0, bytesRead);
      if (!piece.equals(zeros.subarray(0, bytesRead))) await target.write(piece, 0, bytesRead, position);
      position += bytesRead;
    }
    await target.truncate(position);
  } finally {
    await source.close();
    await target.close();
  }
}

/**
 * A machine's disk was written by its hypervisor, which a guest may have taken over. Throws {@link StartError} when its
 * header would make a reader, who still has our rights, open another file for the data. The backing file it names is of
 * no account, readers are given ours; what is missing or no qcow2 they refuse themselves.
 */
export async function requireOwnData(path: string): Promise<void> {
  let file: Awaited<ReturnType<typeof open>>;
  try {
    file = await open(path, 'r');
  } catch (error) {
    if (isMissing(error)) return;
    throw error;
  }
  try {
    const { buffer } = await file.read(Buffer.alloc(QCOW2_HEADER_BYTES), 0, QCOW2_HEADER_BYTES, 0);
    if (buffer.readUInt32BE(4) >= 3 && (buffer.readUInt32BE(76) & QCOW2_DATA_FILE) !== 0) {
      throw new StartError('DiskInvalid', 'the disk of the machine names a data file');
    }
  } finally {
    await file.close();
  }
}

async function qemuImg(parameters: string[]): Promise<void> {
  await execute('qemu-img', parameters, {
    timeout: METADATA_TIMEOUT_MILLISECONDS,
    killSignal: 'SIGKILL',
    maxBuffer: OUTPUT_LIMIT_BYTES,
    env: { PATH: process.env['PATH'], LC_ALL: 'C' },
  });
}
