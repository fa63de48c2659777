/** A disk with content like that of guests: programs and libraries in blocks, with holes between. */
import {
  closeSync,
  type Dirent,
  fsyncSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { codeOf } from '../../base/errors.ts';

/** A folder of every machine, whose files compress like those on disks of guests. */
const CONTENT = '/usr/lib';
/** Size of a block of a file system. Files begin at its multiples. */
const BLOCK_BYTES = 4096;
/** Size of a piece of data, which is followed by a hole of the same size. */
export const RUN_BYTES = 256 * 1024 * 1024;
const READ_BYTES = 1024 * 1024;

/** Writes a raw disk of `virtualBytes` with `dataBytes` of data, which is at most half of it. */
export function writeTestDisk(path: string, virtualBytes: number, dataBytes: number): void {
  const disk = openSync(path, 'w', 0o600);
  try {
    ftruncateSync(disk, virtualBytes);
    let written = 0;
    for (const piece of content()) {
      for (let at = 0; at < piece.length && written < dataBytes; ) {
        const length = Math.min(piece.length - at, RUN_BYTES - (written % RUN_BYTES), dataBytes - written);
        writeSync(disk, piece, at, length, Math.floor(written / RUN_BYTES) * RUN_BYTES + written);
        at += length;
        written += length;
      }
      if (written === dataBytes) {
        break;
      }
    }
    // Hosts refuse a disk that begins with a program. The first block of a real disk is a partition table or empty.
    writeSync(disk, Buffer.alloc(BLOCK_BYTES), 0, BLOCK_BYTES, 0);
    fsyncSync(disk);
  } finally {
    closeSync(disk);
  }
}

/**
 * Returns files in whole blocks, again and again. A repeated file begins at another place of a chunk, so that no two chunks are the same.
 */
function* content(): Generator<Buffer, void, undefined> {
  const buffer = Buffer.alloc(READ_BYTES);
  for (;;) {
    let length = 0;
    for (const path of filesBelow(CONTENT)) {
      for (const piece of read(path, buffer)) {
        length += piece.length;
        yield piece;
      }
    }
    if (length === 0) {
      throw new Error(`there is nothing to read in ${CONTENT}`);
    }
    yield buffer.subarray(0, BLOCK_BYTES);
  }
}

function* filesBelow(folder: string): Generator<string, void, undefined> {
  const byName = (a: Dirent, b: Dirent): number => (a.name < b.name ? -1 : 1);
  for (const entry of readdirSync(folder, { withFileTypes: true }).toSorted(byName)) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) {
      yield* filesBelow(path);
    } else if (entry.isFile()) {
      yield path;
    }
  }
}

/** Returns the next piece. The buffer is used again for the piece after it. */
function* read(path: string, buffer: Buffer): Generator<Buffer, void, undefined> {
  const file = openFile(path);
  if (file === undefined) {
    return;
  }
  try {
    for (;;) {
      const length = readSync(file, buffer);
      if (length === 0) {
        return;
      }
      const end = Math.ceil(length / BLOCK_BYTES) * BLOCK_BYTES;
      buffer.fill(0, length, end);
      yield buffer.subarray(0, end);
    }
  } finally {
    closeSync(file);
  }
}

/** Opens a file. Returns undefined if not every user may read it. */
function openFile(path: string): number | undefined {
  try {
    return openSync(path, 'r');
  } catch (error) {
    if (codeOf(error) === 'EACCES') {
      return undefined;
    }
    throw error;
  }
}
