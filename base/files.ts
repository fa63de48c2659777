/** Files that are whole or not there, whatever becomes of the process or of the host's power. */
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { open, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isMissing } from './errors.ts';
import { withReserve } from './reserve.ts';

/** Of a file that nobody else need read. */
const MODE = 0o600;

/** The writing of each path that was asked for last, done or not. */
const lastWrites = new Map<string, Promise<void>>();

/**
 * Replaces a file's text. Once this resolves the text is on the disk. A reader sees the old text or the new one, and what is
 * asked for last is what stays. The folder has to be there. On a full disk it takes the room of the reserve, where one is kept.
 *
 * @throws Error of the system; the old text stays then.
 */
export async function writeWhole(path: string, text: string, mode = MODE): Promise<void> {
  const before = lastWrites.get(path);
  const write = (async () => {
    await before?.catch(() => undefined);
    await replace(path, text, mode);
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

/** As {@link writeWhole}, before it returns: for what the next statement rests on. It must not meet the other one at a path. */
export function writeWholeSync(path: string, text: string, mode = MODE): void {
  try {
    replaceSync(path, text, mode);
  } catch (error) {
    withReserve(dirname(path), error, () => replaceSync(path, text, mode));
  }
}

/** Returns once the content of a file, or the names in a folder, are on the disk. */
export async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Names of the folders below `root`; none where it does not exist. */
export async function listFolders(root: string): Promise<string[]> {
  try {
    const entries = await readdir(root, { withFileTypes: true });
    return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
  } catch (error) {
    if (isMissing(error)) {
      return [];
    }
    throw error;
  }
}

async function replace(path: string, text: string, mode: number): Promise<void> {
  const temporary = temporaryOf(path);
  try {
    await writeFile(temporary, text, { mode, flush: true });
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    // At once, so that nobody else takes the room in between.
    withReserve(dirname(path), error, () => replaceSync(path, text, mode));
    return;
  }
  await sync(dirname(path));
}

function replaceSync(path: string, text: string, mode: number): void {
  const temporary = temporaryOf(path);
  try {
    writeFileSync(temporary, text, { mode, flush: true });
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

/** One for each path, so that those of processes that were killed do not heap up. */
function temporaryOf(path: string): string {
  return `${path}.tmp`;
}
