/**
 * Memory of an image in the folder of the cluster's image storage. It is in three files beside the disk `PATH`: `PATH.ram` has the guest's
 * memory with holes, `PATH.state` has the state of the devices, and `PATH.memory.json` describes both. The source of the image states the
 * sha256 of `PATH.memory.json`, and this file states the sha256 of the others. So nobody can exchange one of the files.
 */
import { createHash } from 'node:crypto';
import { chmod, open, rename, rm, stat, writeFile } from 'node:fs/promises';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { imageMemorySchema } from '../../../api/v1alpha1/task.ts';
import type { JsonLimits } from '../../../base/json.ts';
import { MEMORY_LIMIT_BYTES, type MemoryFiles, STATE_LIMIT_BYTES } from '../../disks/disk.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import { copyHashed } from '../../disks/sparse.ts';

const FILE_MODE = 0o400;
const sha256 = z.string().regex(/^[0-9a-f]{64}$/);

export const storedMemorySchema = z.strictObject({
  version: z.literal(1),
  ...imageMemorySchema.shape,
  memoryBytes: imageMemorySchema.shape.memoryBytes.max(MEMORY_LIMIT_BYTES),
  /** Size of the state in bytes. */
  stateBytes: z.number().int().positive().max(STATE_LIMIT_BYTES),
  /** SHA-256 of the files, in hexadecimal digits. */
  sha256: z.strictObject({ ram: sha256, state: sha256 }),
});
export type StoredMemory = z.infer<typeof storedMemorySchema>;

/** Limits of `PATH.memory.json`. The file has ten values, of which the longest have 64 characters. */
export const DESCRIPTION_LIMITS: JsonLimits = { bytes: 4096, items: 64 };

/** Returns the paths of the files with the memory of the disk `path`. */
export function memoryBeside(path: string): { ram: string; state: string; description: string } {
  return { ram: `${path}.ram`, state: `${path}.state`, description: `${path}.memory.json` };
}

interface WritingOptions {
  signal: AbortSignal;
  /** Called with the number of bytes that were processed since the last call. The sum of all calls is `memoryBytes`. */
  onBytes: (count: number) => void;
}

export interface WrittenMemory {
  /** SHA-256 of `PATH.memory.json`, in hexadecimal digits. */
  digest: string;
  /** Bytes of disk space of the files. */
  storageBytes: number;
}

/** Writes the memory beside the disk `path`. When the promise resolves, the content survives a loss of power, but not yet the names.
 *
 * @throws ReasonedError `ImageInvalid` when the files do not have the sizes that memory can have.
 */
export async function writeMemory(
  path: string,
  memory: MemoryFiles,
  { signal, onBytes }: WritingOptions,
): Promise<WrittenMemory> {
  const stateBytes = await checkMemory(memory);
  const files = memoryBeside(path);
  const copy = async (from: string, to: string, count: (bytes: number) => void): Promise<string> => {
    const source = await open(from, 'r');
    try {
      const { size } = await source.stat();
      const copied = await copyHashed(source, to, { bytes: size, signal, onBytes: count });
      await chmod(to, FILE_MODE);
      return copied.sha256;
    } finally {
      await source.close();
    }
  };
  const ram = await copy(memory.ram, files.ram, onBytes);
  const state = await copy(memory.state, files.state, () => undefined);
  const described: StoredMemory = {
    version: 1,
    ...imageMemorySchema.parse(memory),
    stateBytes,
    sha256: { ram, state },
  };
  const text = JSON.stringify(described);
  await rm(files.description, { force: true });
  await writeFile(files.description, text, { mode: FILE_MODE, flag: 'wx', flush: true });
  return {
    digest: createHash('sha256').update(text).digest('hex'),
    storageBytes: await allocatedBytes(...Object.values(files)),
  };
}

/** Checks the sizes of the files. Returns the size of the state in bytes. @throws ReasonedError `ImageInvalid` when a size is wrong. */
export async function checkMemory({ ram, state, memoryBytes }: MemoryFiles): Promise<number> {
  const [ramFile, stateFile] = await Promise.all([stat(ram), stat(state)]);
  if (ramFile.size !== memoryBytes || memoryBytes > MEMORY_LIMIT_BYTES) {
    throw new ReasonedError(
      'ImageInvalid',
      `The memory has ${ramFile.size} bytes. Its size must be ${memoryBytes} bytes, and at most ${MEMORY_LIMIT_BYTES}`,
    );
  }
  if (stateFile.size > STATE_LIMIT_BYTES) {
    throw new ReasonedError(
      'ImageInvalid',
      `The state of the devices has ${stateFile.size} bytes, more than the allowed ${STATE_LIMIT_BYTES}`,
    );
  }
  return stateFile.size;
}

/** Moves the memory from beside the disk `from` to beside the disk `to`. The caller syncs the folder. */
export async function moveMemory(from: string, to: string): Promise<void> {
  const [before, after] = [memoryBeside(from), memoryBeside(to)];
  await rename(before.ram, after.ram);
  await rename(before.state, after.state);
  await rename(before.description, after.description);
}

/** Removes the files with the memory of the disk `path`, as far as they exist. */
export async function removeMemory(path: string): Promise<void> {
  for (const file of Object.values(memoryBeside(path))) {
    await rm(file, { force: true });
  }
}
