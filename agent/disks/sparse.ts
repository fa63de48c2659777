/** Writes disk files in which blocks of zeros use no space. */
import type { FileHandle } from 'node:fs/promises';
import type { DirectFile } from './diskio.ts';

/**
 * Holes in a file have this size in bytes, and begin at multiples of this size. The number is qcow2's default cluster size, and a multiple
 * of the block size of every file system.
 */
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
  /** True if the file contained no data before the caller's first write. If so, blocks of zeros need not be written. */
  fresh: boolean;
  /** The same file, opened for direct writes. The bytes of a direct write must be in one of the buffers {@link DirectFile.rooms}. */
  direct?: DirectFile | undefined;
}

/**
 * Writes `bytes` at `position` of the file. Skips a block of zeros if the file already contains only zeros at the position of this block.
 * The caller may reuse `bytes` when the promise resolves.
 */
export async function writeSparse(target: SparseFile, bytes: Buffer, position: number): Promise<void> {
  let dataFrom: number | undefined;
  let at = 0;
  while (at < bytes.length) {
    // Each block ends at a multiple of HOLE_BYTES in the file, even if `bytes` does not begin at such a multiple.
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
  // The function must read the file, because an earlier attempt might have written other bytes than zeros here.
  const there = Buffer.allocUnsafe(block.length);
  await readAll(target.file, there, position);
  return isZero(there);
}

/** Fills `into` with the bytes of the file from `position`. Bytes beyond the end of the file are read as zeros. */
export async function readAll(file: FileHandle, into: Buffer, position: number): Promise<void> {
  for (let at = 0; at < into.length; ) {
    const { bytesRead } = await file.read(into, at, into.length - at, position + at);
    if (bytesRead === 0) {
      into.fill(0, at);
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
