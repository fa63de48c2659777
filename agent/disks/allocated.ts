/** What files take on their disk, which is less than their length where they have holes. */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing } from '../../base/errors.ts';

/** A file's blocks are counted in these, whatever those of its file system are. */
const STAT_BLOCK_BYTES = 512;

export async function allocatedBytes(path: string): Promise<number> {
  return (await stat(path)).blocks * STAT_BLOCK_BYTES;
}

/** Bytes that the files of a folder take; one that goes meanwhile takes none. */
export async function allocated(folder: string): Promise<number> {
  let bytes = 0;
  for (const name of await entriesOf(folder)) {
    bytes += await blocksOf(join(folder, name));
  }
  return bytes;
}

async function entriesOf(folder: string): Promise<string[]> {
  try {
    return await readdir(folder, { recursive: true });
  } catch (error) {
    if (isMissing(error)) {
      return [];
    }
    throw error;
  }
}

async function blocksOf(path: string): Promise<number> {
  try {
    return await allocatedBytes(path);
  } catch (error) {
    if (isMissing(error)) {
      return 0;
    }
    throw error;
  }
}
