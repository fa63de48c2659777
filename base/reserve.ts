/** A reserve of disk space: small files of ours can be written even when others have filled the file system. */
import { randomBytes } from 'node:crypto';
import { appendFileSync, existsSync, statSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { isDiskFull } from './errors.ts';

/** Enough for some hundred files of a few KiB at once, each with its temporary file. */
const RESERVE_BYTES = 1024 * 1024;
const NAME = '.reserve';

/** The reserve of each file system, by the number of its device. */
const reserves = new Map<number, string>();

/**
 * Makes or fills up the reserve of a file system, in a folder that exists. A full file system gives what is left. Call this
 * again from time to time, because there may be space again.
 *
 * @throws Error of the system, except for a full disk.
 */
export function keepReserve(folder: string): void {
  const { dev } = statSync(folder);
  const known = reserves.get(dev);
  const path = known !== undefined && existsSync(known) ? known : join(folder, NAME);
  reserves.set(dev, path);
  fill(path);
}

/**
 * Repeats a `write` that has failed with `error`, now with the space of the reserve, then fills the reserve up again.
 *
 * @throws Error that is `error`, if the disk is not full or its file system has no reserve.
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

/** Adds what is missing. The bytes are random, because some file systems compress. A part is better than none. */
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
