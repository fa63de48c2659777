/** Functions for large files. They measure used space, compute digests, write without the page cache, and release buffers. */
import { createHash } from 'node:crypto';
import { createReadStream, type Dirent } from 'node:fs';
import { constants, type FileHandle, lstat, open, opendir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, isMissing, isOfSystem, undefinedIf } from '../../base/errors.ts';

/** Unit, in bytes, of the field `blocks` in the result of stat(). The unit is the same for every file system. */
export const STAT_BLOCK_BYTES = 512;
/** Number of bytes that are hashed at a time. */
const READ_BYTES = 1024 ** 2;
/** A buffer of at least this size in bytes has memory of its own. Smaller buffers can share their memory with other buffers. */
const OWN_MEMORY_BYTES = 64 * 1024;
/**
 * Alignment in bytes that direct writes require. It is the size of one memory page. For each direct write, the address in memory, the
 * position in the file and the length must be multiples of this number.
 */
const ALIGNMENT_BYTES = 4096;
/**
 * The search for an aligned address goes forward by this number of bytes at each step. The memory of a buffer begins at a multiple of 16
 * bytes, so no aligned address lies between two steps.
 */
const STEP_BYTES = 16;

/**
 * Limit of the number of entries (files and folders) that {@link folderBytes} counts. One limit applies to the entries directly in a
 * machine's folder. Each subfolder has a limit of its own, which includes all levels below the subfolder. A machine has about 30 entries in
 * total.
 */
const ENTRIES_LIMIT = 2_000;

/** Returns the number of bytes that files use on the disk. The result is less than their length if the files have holes. */
export async function allocatedBytes(...paths: readonly string[]): Promise<number> {
  const stats = await Promise.all(paths.map(async (path) => await stat(path)));
  return stats.reduce((sum, { blocks }) => sum + blocks * STAT_BLOCK_BYTES, 0);
}

/**
 * Returns the number of bytes that all files in a folder use on the disk. A subfolder can belong to the Linux user that runs an emulator.
 * This user can create any entries in the subfolder. Therefore the function does not follow links, and counts 0 bytes for an entry that it
 * cannot read. In each subfolder, the function counts at most 2,000 entries, upper levels first. The limit is separate for each subfolder.
 * So even if one subfolder has very many entries, the function counts the disks in the other subfolders.
 */
export async function folderBytes(folder: string): Promise<number> {
  let bytes = 0;
  for (const entry of await readEntries(folder, ENTRIES_LIMIT)) {
    const path = join(folder, entry.name);
    bytes += (await ownBytes(path)) + (entry.isDirectory() ? await treeBytes(path) : 0);
  }
  return bytes;
}

async function treeBytes(folder: string): Promise<number> {
  const folders = [folder];
  let bytes = 0;
  let left = ENTRIES_LIMIT;
  // While the loop runs, it appends subfolders to `folders`, and later visits them too.
  for (const one of folders) {
    for (const entry of await readEntries(one, left)) {
      const path = join(one, entry.name);
      left -= 1;
      bytes += await ownBytes(path);
      if (entry.isDirectory()) {
        folders.push(path);
      }
    }
  }
  return bytes;
}

async function ownBytes(path: string): Promise<number> {
  return ((await undefinedIf(isOfSystem, lstat(path)))?.blocks ?? 0) * STAT_BLOCK_BYTES;
}

/**
 * Returns at most `limit` entries of a folder. A folder that cannot be opened counts as empty, for example a missing folder, or a folder
 * whose path is too long.
 */
export async function readEntries(folder: string, limit: number): Promise<Dirent[]> {
  const entries: Dirent[] = [];
  const opened = limit > 0 ? await undefinedIf(isOfSystem, opendir(folder)) : undefined;
  for await (const entry of opened ?? []) {
    entries.push(entry);
    if (entries.length === limit) {
      break;
    }
  }
  return entries;
}

/** Returns the result of `work`, or undefined if `work` fails because its file or folder does not exist. */
export async function unlessMissing<T>(work: Promise<T>): Promise<T | undefined> {
  return await undefinedIf(isMissing, work);
}

/** Returns the sha256 of a file's content, as hexadecimal digits. */
export async function fileDigest(path: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { signal, highWaterMark: READ_BYTES })) {
    hash.update(chunk as Buffer);
  }
  return hash.digest('hex');
}

/**
 * Releases the memory of a large buffer at once. If the garbage collector released the memory later, twice as much memory would be in use.
 * Afterwards the buffer is empty, and the caller must not use it again. The function does not change a small buffer or a buffer that is
 * part of another buffer.
 */
export function freeBuffer({ buffer, byteLength }: Buffer): void {
  const isOwn = buffer instanceof ArrayBuffer && buffer.byteLength === byteLength;
  if (isOwn && byteLength >= OWN_MEMORY_BYTES) {
    buffer.transfer(0);
  }
}

/**
 * Joins small buffers into larger pieces. The function copies the small buffers into `piece`, and yields `piece` each time it is full. At
 * the end, the function yields the filled part of `piece`. If `piece` is undefined, the function yields each small buffer unchanged. The
 * function releases the memory of a small buffer after it copied or yielded the buffer.
 */
export async function* gathered(
  pieces: AsyncIterable<Buffer>,
  piece: Buffer | undefined,
): AsyncGenerator<Buffer, void, undefined> {
  let filled = 0;
  for await (const bytes of pieces) {
    if (piece === undefined) {
      yield bytes;
    } else {
      for (let at = 0; at < bytes.length; ) {
        const copied = bytes.copy(piece, filled, at);
        filled += copied;
        at += copied;
        if (filled < piece.length) {
          continue;
        }
        yield piece;
        filled = 0;
      }
    }
    freeBuffer(bytes);
  }
  if (piece !== undefined && filled > 0) {
    yield piece.subarray(0, filled);
  }
}

/**
 * A file whose writes bypass the page cache. Many gigabytes in the page cache would displace the pages that running guests need. The copy
 * into the cache also costs more processor time than the decoding of an image. For 2 GiB, the copy takes 1.2 to 4 s, and the decoding takes
 * 0.3 s.
 */
export class DirectFile {
  /**
   * Handle for direct writes. A write must take its bytes from one of the buffers `rooms`. {@link takes} must return true for these bytes
   * and their position.
   */
  readonly file: FileHandle;
  /** Buffers for the bytes to write. Each buffer begins at an address that direct writes accept. */
  readonly rooms: readonly Buffer[];

  private constructor(file: FileHandle, rooms: readonly Buffer[]) {
    this.file = file;
    this.rooms = rooms;
  }

  /**
   * Opens an existing file, and allocates `rooms.count` buffers of `rooms.bytes` bytes. Returns undefined if the system or the file system
   * does not support direct writes.
   */
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

/**
 * Returns a buffer of `bytes` bytes at an address that direct writes accept, or undefined if no tested address is accepted. JavaScript code
 * cannot read the address of a buffer. So the function tests each address with a direct write to the file `probe`.
 */
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

/** Returns the result of `work`, or undefined if `work` fails with EINVAL. The system reports this error when it refuses a direct write. */
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
