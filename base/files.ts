/**
 * Writes files that are either complete or absent, even if the process is killed or the host loses power. Keeps a reserve of disk space,
 * locks files between processes, and removes folders.
 */
import {
  appendFileSync,
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { type FileHandle, link, open, readdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { randomBytes } from 'node:crypto';
import { homedir } from 'node:os';
import { hasCode, isDiskFull, isMissing, undefinedIf } from './errors.ts';
import { run } from './exec.ts';
import { pause } from './time.ts';

/** File mode: only the owner is allowed to read and write the file. */
const MODE = 0o600;
/**
 * Time limit in milliseconds for the removal of folders. It is long, because a hostile user of a folder can make millions of files there.
 * The programs of Berth make only few files in a folder.
 */
const REMOVE_TIMEOUT_MILLISECONDS = 300_000;

/** The last requested write of each path. It can be queued, under way or finished. */
const lastWrites = new Map<string, Promise<void>>();

/**
 * Replaces the content of a file. When the promise resolves, the content is on the disk. A reader sees either the old content or the new
 * one. If several writes of a path overlap, the content of the last call stays. The folder must exist. If the disk is full and the file
 * system has a reserve of disk space ({@link keepReserve}), the write uses the reserve.
 *
 * @throws Error of the system when the write fails. After a failure, the file has its old content. If only the sync of the folder failed,
 * it has the new content.
 */
export async function writeWhole(path: string, content: string | Uint8Array, mode = MODE): Promise<void> {
  const before = lastWrites.get(path);
  const write = (async () => {
    await before?.catch(() => undefined);
    await replace(path, content, mode);
  })();
  lastWrites.set(path, write);
  try {
    await write;
  } finally {
    if (lastWrites.get(path) === write) {
      lastWrites.delete(path);
    }
  }
}

/** Does the same as {@link writeWhole}, but synchronously. A caller must not use both functions for the same path. */
export function writeWholeSync(path: string, text: string, mode = MODE): void {
  try {
    replaceSync(path, text, mode);
  } catch (error) {
    withReserve(dirname(path), error, () => replaceSync(path, text, mode));
  }
}

/** Resolves when the content of a file is on the disk. For a folder, resolves when the names of its files are on the disk. */
export async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Returns the names of the folders in `root`. The list is empty if `root` does not exist. */
export async function listFolders(root: string): Promise<string[]> {
  const entries = (await undefinedIf(isMissing, readdir(root, { withFileTypes: true }))) ?? [];
  return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
}

/**
 * Removes files and folders with all that is in them, if they exist. Uses the program `rm`, because Node.js cannot remove folders that are
 * nested very deeply. `rm` follows no links, even if another process puts links into the folders at the same time.
 *
 * @throws ProgramError when `rm` fails, or needs longer than five minutes.
 */
export async function removeTrees(paths: readonly string[]): Promise<void> {
  await run('rm', ['-rf', '--', ...paths], { timeoutMilliseconds: REMOVE_TIMEOUT_MILLISECONDS });
}

async function replace(path: string, content: string | Uint8Array, mode: number): Promise<void> {
  const temporary = temporaryOf(path);
  try {
    // The temporary file must be new. An existing file could be a link, or belong to another user, who could then read the content.
    await rm(temporary, { force: true });
    await writeFile(temporary, content, { mode, flush: true, flag: 'wx' });
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    // If the disk is full, `withReserve` frees space and writes again. This second write is synchronous, so that no other write of this
    // process uses the freed space first.
    withReserve(dirname(path), error, () => replaceSync(path, content, mode));
    return;
  }
  await sync(dirname(path));
}

function replaceSync(path: string, content: string | Uint8Array, mode: number): void {
  const temporary = temporaryOf(path);
  try {
    rmSync(temporary, { force: true });
    writeFileSync(temporary, content, { mode, flush: true, flag: 'wx' });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
  const folder = openSync(dirname(path), 'r');
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

/** Returns the path of the temporary file for a path. The name is fixed, so that killed processes leave at most one such file behind. */
function temporaryOf(path: string): string {
  return `${path}.tmp`;
}

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

/**
 * Returns the user's home folder. If the user has none, returns the root folder. In a container, there is sometimes neither the variable
 * `HOME` nor an entry for the user in the user database.
 */
export function homeFolder({ HOME: home }: Readonly<Record<string, string | undefined>>): string {
  try {
    return home || homedir();
  } catch {
    // `homedir` throws if the system does not know the user.
    return '/';
  }
}
