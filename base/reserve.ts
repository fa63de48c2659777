/** A reserve of disk space. Berth can write its small files even if others have filled the file system. */
import { randomBytes } from 'node:crypto';
import { appendFileSync, existsSync, statSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { isDiskFull } from './errors.ts';

/** Size of the reserve, in bytes. There is room for some hundred files of a few KiB at once, each with its temporary file. */
const RESERVE_BYTES = 1024 * 1024;
const NAME = '.reserve';

/** Path of the reserve of each file system, by device number. */
const reserves = new Map<number, string>();

/**
 * Creates or refills the reserve of the file system that contains `folder`. The folder must exist. On a full file system the
 * reserve becomes as large as the free space allows. Call this function from time to time, because space may become free.
 *
 * @throws Error of the system, except when the disk is full.
 */
export function keepReserve(folder: string): void {
  const { dev } = statSync(folder);
  const known = reserves.get(dev);
  const path = known !== undefined && existsSync(known) ? known : join(folder, NAME);
  reserves.set(dev, path);
  fill(path);
}

/**
 * Repeats a `write` that failed with `error`, now with the space of the reserve. Afterwards it refills the reserve.
 *
 * @throws Error that is `error`, when the disk is not full or its file system has no reserve.
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

/** Refills the reserve as far as the disk has room. The bytes are random, because some file systems compress files. */
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
