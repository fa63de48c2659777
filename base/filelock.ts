/**
 * Lets only one process at a time change a file. The lock is a second file in the same folder. Only one process can create this second
 * file.
 */
import { type FileHandle, link, open, rename, rm, stat } from 'node:fs/promises';
import { hasCode, isMissing, undefinedIf } from './errors.ts';
import { pause } from './time.ts';

/** Interval in milliseconds between two attempts to get a lock. Other processes usually hold the lock for less than a second. */
const ATTEMPT_MILLISECONDS = 50;

export interface FileLockOptions {
  /** Age in milliseconds after which a lock counts as left behind by a killed process. All work under the lock must take less time. */
  readonly staleMilliseconds: number;
  readonly signal: AbortSignal;
}

/**
 * Runs `work` while this process holds the lock file. Other processes that use the same path wait.
 *
 * @throws the signal's reason when the signal aborts during the wait for the lock, or the system's error when the lock file cannot be
 * created. If `work` fails, its error is thrown.
 */
export async function withFileLock<T>(
  path: string,
  { staleMilliseconds, signal }: FileLockOptions,
  work: () => Promise<T>,
): Promise<T> {
  // The handle stays open during the work. Otherwise the file system could give the inode number of a removed lock to a new lock.
  await using lock = await acquire(path, staleMilliseconds, signal);
  const { ino } = await lock.stat();
  try {
    return await work();
  } finally {
    // If the work took too long, another process took over the lock as stale. The file at the path is then the lock of that process.
    const found = await undefinedIf(isMissing, stat(path));
    if (found?.ino === ino) {
      await rm(path, { force: true });
    }
  }
}

async function acquire(path: string, staleMilliseconds: number, signal: AbortSignal): Promise<FileHandle> {
  for (;;) {
    const lock = await undefinedIf(hasCode('EEXIST'), open(path, 'wx', 0o600));
    if (lock !== undefined) {
      return lock;
    }
    await removeStale(path, staleMilliseconds);
    await pause(ATTEMPT_MILLISECONDS, signal);
  }
}

async function removeStale(path: string, staleMilliseconds: number): Promise<void> {
  const isStale = async (file: string) => {
    const found = await undefinedIf(isMissing, stat(file));
    return found !== undefined && Date.now() - found.mtimeMs > staleMilliseconds;
  };
  if (!(await isStale(path))) {
    return;
  }
  // Several processes can notice at the same time that the lock is stale. All of them try to rename the lock, but only one succeeds.
  const aside = `${path}.${process.pid}`;
  await undefinedIf(isMissing, rename(path, aside));
  if (!(await isStale(aside))) {
    // The renamed lock is not stale. Another process had already removed the stale lock and created this new lock. That process still works
    // under its lock, so this line restores the lock.
    await undefinedIf(hasCode('ENOENT', 'EEXIST'), link(aside, path));
  }
  await rm(aside, { force: true });
}
