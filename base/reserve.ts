/** Keeps a reserve of disk space: a file that Berth empties when the disk is full. Berth then writes its small files in the freed space. */
import { randomBytes } from 'node:crypto';
import { appendFileSync, existsSync, statSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { isDiskFull } from './errors.ts';

/**
 * Size of the reserve file, in bytes. It is enough for about a hundred files of a few KiB at the same time, each with its temporary file.
 */
const RESERVE_BYTES = 1024 * 1024;
const NAME = '.reserve';

/** Path of the reserve file on each file system, by device number. */
const reserves = new Map<number, string>();

/**
 * Creates or refills the reserve file on the file system that contains `folder`. The folder must exist. If the file system has too little
 * space, the reserve file takes all the space that is left. Call this function from time to time, so that the file grows to its full size
 * when there is space again.
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
 * Calls `write` again after `write` failed with `error`. Before the call, this function empties the reserve file to free disk space. After
 * the call, it refills the file.
 *
 * @throws `error` when the disk is not full, or when the file system of `folder` has no reserve; the error of the second call when that
 * call fails, too.
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

/**
 * Refills the reserve file as far as the disk has space. The bytes are random, because some file systems compress files. Random bytes
 * cannot be compressed, so the file reserves as much space as it has bytes.
 */
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
