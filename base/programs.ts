/** Finds programs in the folders of `PATH`, as the system does when it starts a program by its name. */
import { constants } from 'node:fs';
import { access, stat } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { isOfSystem } from './errors.ts';

/**
 * Returns the path of a program in the first folder that has it, or undefined. An entry of `PATH` that is no folder or cannot be read is
 * skipped, and so is a file that this user may not execute. `more` are further folders, which are searched at last.
 */
export async function findProgram(name: string, more: readonly string[] = []): Promise<string | undefined> {
  for (const folder of [...(process.env['PATH'] ?? '').split(delimiter), ...more]) {
    const path = join(folder, name);
    if (await isProgram(path)) {
      return path;
    }
  }
  return undefined;
}

async function isProgram(path: string): Promise<boolean> {
  try {
    await access(path, constants.X_OK);
    // Users have the right X_OK for folders that they may enter.
    return (await stat(path)).isFile();
  } catch (error) {
    if (isOfSystem(error)) {
      return false;
    }
    throw error;
  }
}
