/** What a file takes on its disk, which is less than its length where it has holes. */
import { stat } from 'node:fs/promises';

/** A file's blocks are counted in these, whatever those of its file system are. */
const STAT_BLOCK_BYTES = 512;

export async function allocatedBytes(path: string): Promise<number> {
  return (await stat(path)).blocks * STAT_BLOCK_BYTES;
}
