/** Writing disks such that what is zero takes no room. */
import type { FileHandle } from 'node:fs/promises';
import type { DirectFile } from './diskio.ts';

/** The unit in which holes are kept: that of qcow2's clusters, and a whole number of any file system's blocks. */
const HOLE_BYTES = 64 * 1024;
const ZEROS = Buffer.alloc(1024 * 1024);

export function isZero(bytes: Buffer): boolean {
  for (let at = 0; at < bytes.length; at += ZEROS.length) {
    const end = Math.min(at + ZEROS.length, bytes.length);
    if (bytes.compare(ZEROS, 0, end - at, at, end) !== 0) {
      return false;
    }
  }
  return true;
}

export interface SparseFile {
  file: FileHandle;
  /** Nothing was ever written to it, so that zeros need not be written either. */
  fresh: boolean;
  /** The same file, where what is written lies in one of its rooms. */
  direct?: DirectFile | undefined;
}

/** Writes `bytes` at `position`, leaving out whole blocks of zeros. `bytes` may be reused when it returns. */
export async function writeSparse(target: SparseFile, bytes: Buffer, position: number): Promise<void> {
  let dataFrom: number | undefined;
  let at = 0;
  while (at < bytes.length) {
    // Blocks count from the file's beginning, wherever the piece lies.
    const end = Math.min(at + HOLE_BYTES - ((position + at) % HOLE_BYTES), bytes.length);
    const hole = await isHole(target, bytes.subarray(at, end), position + at);
    if (hole && dataFrom !== undefined) {
      await writeData(target, bytes.subarray(dataFrom, at), position + dataFrom);
      dataFrom = undefined;
    } else if (!hole) {
      dataFrom ??= at;
    }
    at = end;
  }
  if (dataFrom !== undefined) {
    await writeData(target, bytes.subarray(dataFrom), position + dataFrom);
  }
}

async function writeData({ file, direct }: SparseFile, bytes: Buffer, position: number): Promise<void> {
  await writeAll(direct?.takes(bytes, position) === true ? direct.file : file, bytes, position);
}

async function isHole(target: SparseFile, block: Buffer, position: number): Promise<boolean> {
  if (!isZero(block)) {
    return false;
  }
  if (target.fresh) {
    return true;
  }
  // An earlier attempt may have left something other than zeros here.
  const there = Buffer.alloc(block.length);
  await readAll(target.file, there, position);
  return isZero(there);
}

/** Beyond the file's end: zeros, as `into` is expected to hold. */
async function readAll(file: FileHandle, into: Buffer, position: number): Promise<void> {
  for (let at = 0; at < into.length; ) {
    const { bytesRead } = await file.read(into, at, into.length - at, position + at);
    if (bytesRead === 0) {
      return;
    }
    at += bytesRead;
  }
}

export async function writeAll(file: FileHandle, bytes: Buffer, position: number): Promise<void> {
  for (let at = 0; at < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, at, bytes.length - at, position + at);
    at += bytesWritten;
  }
}
