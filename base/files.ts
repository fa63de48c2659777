/** Files that are whole or not there, whatever becomes of the process or of the host's power. */
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { open, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isMissing } from './errors.ts';
import { withReserve } from './reserve.ts';

/** Only the owner may read and write the file. */
const MODE = 0o600;

/** The last write that was asked for, by path; it may wait, be under way or be done. */
const lastWrites = new Map<string, Promise<void>>();

/**
 * Replaces a file's text. When this resolves, the text is on the disk. A reader sees the old text or the new one. Of several
 * writes the one that was asked for last stays. The folder must exist. On a full disk the write uses the reserve, if there is one.
 *
 * @throws Error of the system. The old text then stays.
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

/** Like {@link writeWhole}, but synchronous. A path must always be written in the same one of the two ways. */
export function writeWholeSync(path: string, text: string, mode = MODE): void {
  try {
    replaceSync(path, text, mode);
  } catch (error) {
    withReserve(dirname(path), error, () => replaceSync(path, text, mode));
  }
}

/** Resolves when the content of a file, or the names in a folder, are on the disk. */
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

/** Each path has one temporary file, so that killed processes leave at most one behind. */
function temporaryOf(path: string): string {
  return `${path}.tmp`;
}
