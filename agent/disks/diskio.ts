/** Large files and their bytes: the room that files take, their digest, writing past the page cache, giving memory back. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { constants, type FileHandle, open, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, isMissing } from '../../base/errors.ts';

/** A file's blocks are counted in these, whatever those of its file system are. */
const STAT_BLOCK_BYTES = 512;
/** How much of a file is hashed at a time. */
const READ_BYTES = 1024 ** 2;
/** Smaller buffers may share their memory with others. */
const OWN_MEMORY_BYTES = 64 * 1024;
/** A direct write begins, in memory and in the file, at a multiple of a memory page, and is as long as a number of them. */
const ALIGNMENT_BYTES = 4096;
/** Memory is given at multiples of this many bytes. */
const STEP_BYTES = 16;

/** Bytes that a file takes on its disk: less than its length where it has holes. */
export async function allocatedBytes(path: string): Promise<number> {
  return (await stat(path)).blocks * STAT_BLOCK_BYTES;
}

/** Bytes that the files of a folder take on their disk; one that goes meanwhile takes none. */
export async function folderBytes(folder: string): Promise<number> {
  let bytes = 0;
  for (const name of (await unlessMissing(() => readdir(folder, { recursive: true }))) ?? []) {
    bytes += (await unlessMissing(() => allocatedBytes(join(folder, name)))) ?? 0;
  }
  return bytes;
}

async function unlessMissing<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}

/** The sha256 of a file's content, as hexadecimal digits. */
export async function fileDigest(path: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { signal, highWaterMark: READ_BYTES })) {
    hash.update(chunk as Buffer);
  }
  return hash.digest('hex');
}

/**
 * Gives the memory of a large buffer back at once: left to the collector, twice as much of it would be in use. The buffer is
 * empty afterwards; one that is a part of another stays. Nothing may still read or write it.
 */
export function freeBuffer({ buffer, byteLength }: Buffer): void {
  const isOwn = buffer instanceof ArrayBuffer && buffer.byteLength === byteLength;
  if (isOwn && byteLength >= OWN_MEMORY_BYTES) {
    buffer.transfer(0);
  }
}

/**
 * A file that is written past the page cache. An image of many gigabytes would push out of it what running guests need there, and
 * copying it in costs more processor time than decoding it (2 GiB: 1.2 to 4 s against 0.3 s).
 */
export class DirectFile {
  /** Writes bytes that lie in one of the rooms and that it {@link takes}. */
  readonly file: FileHandle;
  /** Memory for the bytes to write: each room begins where the disk can take it from. */
  readonly rooms: readonly Buffer[];

  private constructor(file: FileHandle, rooms: readonly Buffer[]) {
    this.file = file;
    this.rooms = rooms;
  }

  /** Opens a file that is there. Undefined where the system or the file system cannot write so. */
  static async open(path: string, rooms: { count: number; bytes: number }): Promise<DirectFile | undefined> {
    const probe = `${path}.probe`;
    const file = await openDirect(probe, constants.O_CREAT);
    if (file === undefined) {
      return undefined;
    }
    try {
      const found = await Promise.all(
        Array.from({ length: rooms.count }, () => alignedRoom(file, rooms.bytes)),
      );
      const usable = found.filter((room) => room !== undefined);
      const target = usable.length === rooms.count ? await openDirect(path, 0) : undefined;
      return target && new DirectFile(target, usable);
    } finally {
      await file.close();
      await rm(probe, { force: true });
    }
  }

  takes(bytes: Buffer, position: number): boolean {
    return bytes.length % ALIGNMENT_BYTES === 0 && position % ALIGNMENT_BYTES === 0;
  }

  async close(): Promise<void> {
    await this.file.close();
  }
}

async function openDirect(path: string, flags: number): Promise<FileHandle | undefined> {
  const { O_DIRECT, O_RDWR } = constants as Partial<typeof constants>;
  if (O_DIRECT === undefined || O_RDWR === undefined) {
    return undefined;
  }
  return await unlessInvalid(async () => await open(path, O_RDWR | O_DIRECT | flags, 0o600));
}

/** Nothing tells where memory begins: it is found by trying, in a file of its own. */
async function alignedRoom(probe: FileHandle, bytes: number): Promise<Buffer | undefined> {
  const memory = Buffer.from(new ArrayBuffer(bytes + ALIGNMENT_BYTES));
  for (let at = 0; at < ALIGNMENT_BYTES; at += STEP_BYTES) {
    const written = await unlessInvalid(async () => await probe.write(memory, at, ALIGNMENT_BYTES, 0));
    if (written !== undefined) {
      return memory.subarray(at, at + bytes);
    }
  }
  return undefined;
}

/** Undefined for the error by which the system says that it cannot write so here. */
async function unlessInvalid<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    if (codeOf(error) === 'EINVAL') {
      return undefined;
    }
    throw error;
  }
}
