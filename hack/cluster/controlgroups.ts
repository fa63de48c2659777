/** Control groups that tests made. */
import { readdir, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf } from '../../base/errors.ts';

/** Where the hierarchies are. */
export const HIERARCHIES = '/sys/fs/cgroup';

/** Removes a group and those in it, but for those in which something runs; true when none is left. Their files need not be removed. */
export async function removeGroup(group: string): Promise<boolean> {
  try {
    let isGone = true;
    for (const entry of await readdir(group, { withFileTypes: true })) {
      if (entry.isDirectory()) {
        isGone = (await removeGroup(join(group, entry.name))) && isGone;
      }
    }
    if (isGone) {
      await rmdir(group);
    }
    return isGone;
  } catch (error) {
    if (codeOf(error) === 'EBUSY') {
      return false;
    }
    if (['ENOENT', 'ENOTDIR'].includes(codeOf(error) ?? '')) {
      return true;
    }
    throw error;
  }
}
