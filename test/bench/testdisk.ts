/** A disk as guests have them: programs and libraries in blocks, with holes between. */
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

/** What is on this machine anyway, and compresses as what is on guests' disks does. */
const CONTENT = '/usr/lib';
/** Files begin where blocks of a file system do. */
const BLOCK_BYTES = 4096;
/** Of data, each followed by a hole of the same size. */
export const RUN_BYTES = 256 * 1024 * 1024;
const READ_BYTES = 1024 * 1024;

/** Writes a raw disk of `virtualBytes` with `dataBytes` in it, at most half as many. */
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
    fsyncSync(disk);
  } finally {
    closeSync(disk);
  }
}

/**
 * Files in whole blocks, over and over again. What comes again begins somewhere else in a chunk of the disk, so that no two
 * chunks are the same.
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

/** The buffer is used again for the next piece. */
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

/** Undefined where it is not for everybody to read. */
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
