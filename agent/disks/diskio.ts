/**
 * Writing past the page cache. An image of many gigabytes would push out of it what running guests need there, and to copy it
 * in costs more processor time than to decode it (2 GiB: 1.2 to 4 s against 0.3 s).
 */
import { constants, type FileHandle, open, rm } from 'node:fs/promises';
import { codeOf } from '../../base/errors.ts';

/** What disks ask of the place in memory, the place in the file and the length of what is written so: a memory page. */
const ALIGNMENT_BYTES = 4096;
/** Memory is given at multiples of this. */
const STEP_BYTES = 16;

export class DirectFile {
  /** Writes bytes of one of the rooms, and such as it {@link takes}. */
  readonly file: FileHandle;
  /** For what is to be written: each begins where the disk can take it from. */
  readonly rooms: readonly Buffer[];

  private constructor(file: FileHandle, rooms: readonly Buffer[]) {
    this.file = file;
    this.rooms = rooms;
  }

  /** A file that is there. Undefined where the system or the file system has no such way. */
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

/** Where memory begins is not said: it is found by trying, in a file of its own. */
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

/** The system's word for a way of writing that it does not have here. */
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
