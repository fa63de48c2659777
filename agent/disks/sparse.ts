/**
 * Writes disk files in which blocks of zeros use no space. Also copies a large file into such a file, and computes the sha256 of exactly
 * the bytes that it copies.
 */
import { type FileHandle, open, rm } from 'node:fs/promises';
import { createHash } from 'node:crypto';
import { DirectFile } from './diskio.ts';

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

/** Number of bytes that are read, hashed and written at a time. The hash of a piece takes less than a millisecond of the event loop. */
const PIECE_BYTES = 512 * 1024;
/** Number of pieces in memory. The next pieces are read and earlier pieces are written while one piece is hashed. */
const PIECES = 16;
/** Number of reads at the same time. With one read, the disk waits while a piece is hashed. */
const READS = 2;
/**
 * Time limit in milliseconds for one read. A file server that stops during a copy answers no read, perhaps for ever. The limit is long,
 * because a file server that moves to another machine needs more than a minute.
 */
const READ_MILLISECONDS = 120_000;

/** A file did not answer a read within the time limit. The read still occupies a thread, so nobody may wait for the end of its handle. */
export class StalledReadError extends Error {
  override name = 'StalledReadError';
}

interface CopyOptions {
  /** Number of bytes to copy. A file that has grown since its length was read is not copied further. */
  bytes: number;
  signal: AbortSignal;
  /** Called with the number of bytes that have been read since the last call. */
  onBytes: (count: number) => void;
}

interface HashedCopy {
  /** SHA-256 of the copied bytes, as hexadecimal digits. */
  sha256: string;
  /** Number of copied bytes. It is less than requested if the file ended early. */
  bytes: number;
}

/**
 * Copies the first `bytes` bytes of `source` to the file `path`, and syncs the copy. Blocks of zeros become holes. Each byte is read once,
 * and the same bytes in memory are hashed and written.
 *
 * @throws StalledReadError when the source does not answer a read; the signal's reason when the signal aborts.
 */
export async function copyHashed(
  source: FileHandle,
  path: string,
  options: CopyOptions,
): Promise<HashedCopy> {
  // An interrupted attempt can have left a read-only file, which an agent that is not root cannot open.
  await rm(path, { force: true });
  const file = await open(path, 'wx', 0o600);
  let direct: DirectFile | undefined;
  try {
    direct = await DirectFile.open(path, { count: PIECES, bytes: PIECE_BYTES });
    const copied = await copyPieces(source, { file, fresh: true, direct }, options);
    // Zeros at the end were not written, so the length of the file is set here.
    await file.truncate(copied.bytes);
    await file.sync();
    return copied;
  } finally {
    await direct?.close();
    await file.close();
  }
}

async function copyPieces(
  source: FileHandle,
  target: SparseFile,
  { bytes, signal, onBytes }: CopyOptions,
): Promise<HashedCopy> {
  const hash = createHash('sha256');
  const rooms =
    target.direct?.rooms ?? Array.from({ length: PIECES }, () => Buffer.allocUnsafeSlow(PIECE_BYTES));
  /** The last write from each room. A room is read into again only after its write has ended. */
  const writes: Promise<void>[] = rooms.map(async () => await Promise.resolve());
  const count = Math.ceil(bytes / PIECE_BYTES);
  const readInto = async (index: number): Promise<Buffer> => {
    const at = index % PIECES;
    await writes[at];
    const position = index * PIECE_BYTES;
    const length = Math.min(PIECE_BYTES, bytes - position);
    return await readPiece(source, rooms[at]!.subarray(0, length), position);
  };
  /** Reads of the next pieces. The read of a piece is at the place of its turn, and the place is used again for a later turn. */
  const reads: Promise<Buffer>[] = [];
  const ask = (index: number): void => {
    if (index < count) {
      reads[index % READS] = handled(readInto(index));
    }
  };
  let copied = 0;
  try {
    for (let index = 0; index < READS; index += 1) {
      ask(index);
    }
    for (let index = 0; index < count; index += 1) {
      const piece = await reads[index % READS]!;
      signal.throwIfAborted();
      writes[index % PIECES] = handled(writeSparse(target, piece, copied));
      ask(index + READS);
      hash.update(piece);
      onBytes(piece.length);
      copied += piece.length;
      if (piece.length < PIECE_BYTES) {
        // This is the last piece, or the file has ended early.
        break;
      }
    }
  } finally {
    // The handle of the copy can be closed only after its writes.
    await Promise.allSettled(writes);
  }
  await Promise.all(writes);
  return { sha256: hash.digest('hex'), bytes: copied };
}

/** Returns the same promise. Its failure counts as handled, because the caller waits for the promise later. */
function handled<T>(work: Promise<T>): Promise<T> {
  work.catch(() => undefined);
  return work;
}

/** Fills `into` from the file. The result is shorter if the file ends early. */
async function readPiece(source: FileHandle, into: Buffer, position: number): Promise<Buffer> {
  const stalled = Promise.withResolvers<never>();
  const timer = setTimeout(() => {
    stalled.reject(new StalledReadError(`The file did not answer for ${READ_MILLISECONDS / 1000} seconds`));
  }, READ_MILLISECONDS);
  try {
    return await Promise.race([readFully(source, into, position), stalled.promise]);
  } finally {
    clearTimeout(timer);
  }
}

async function readFully(source: FileHandle, into: Buffer, position: number): Promise<Buffer> {
  for (let length = 0; length < into.length; ) {
    const { bytesRead } = await source.read(into, length, into.length - length, position + length);
    if (bytesRead === 0) {
      return into.subarray(0, length);
    }
    length += bytesRead;
  }
  return into;
}
