/** Room that is kept on a file system for small files that must be written there though others have filled it. */
import { randomBytes } from 'node:crypto';
import { appendFileSync, existsSync, statSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { isDiskFull } from './errors.ts';

/** Some hundred files of a few KiB at once, each with its temporary. */
const RESERVE_BYTES = 1024 * 1024;
const NAME = '.reserve';

/** The reserve of each file system, by the number of its device. */
const reserves = new Map<number, string>();

/**
 * Keeps a reserve in a folder that is there, one for each file system, and adds what it has not got yet; on a full one what
 * there is left. To be called again from time to time, when there is room again.
 *
 * @throws Error of the system for all but want of room.
 */
export function keepReserve(folder: string): void {
  const { dev } = statSync(folder);
  const known = reserves.get(dev);
  const path = known !== undefined && existsSync(known) ? known : join(folder, NAME);
  reserves.set(dev, path);
  fill(path);
}

/**
 * Does `write` once more with the room of the reserve, after it has failed with `error`, and keeps what is left again.
 *
 * @throws Error that is `error`, where that is not want of room, or the folder's file system has no reserve.
 */
export function withReserve(folder: string, error: unknown, write: () => void): void {
  const path = isDiskFull(error) ? reserves.get(statSync(folder).dev) : undefined;
  if (path === undefined || !existsSync(path)) {
    throw error;
  }
  truncateSync(path);
  try {
    write();
  } finally {
    fill(path);
  }
}

/** What is there stays there. Random, since some file systems take no room for what can be compressed. A part is better than none. */
function fill(path: string): void {
  const missing = RESERVE_BYTES - (statSync(path, { throwIfNoEntry: false })?.size ?? 0);
  if (missing <= 0) {
    return;
  }
  try {
    appendFileSync(path, randomBytes(missing), { mode: 0o600 });
  } catch (error) {
    if (!isDiskFull(error)) {
      throw error;
    }
  }
}
