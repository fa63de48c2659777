/** Writes files that are either complete or absent, even if the process is killed or the host loses power. Also removes folders. */
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { open, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isMissing, undefinedIf } from './errors.ts';
import { run } from './exec.ts';
import { withReserve } from './reserve.ts';

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
 * system has a reserve of disk space (reserve.ts), the write uses the reserve.
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
