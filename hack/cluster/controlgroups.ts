/** Removes control groups of nodes and of containers. */
import { readdir, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf } from '../../base/errors.ts';
import { waitFor } from '../wait.ts';

/** Folder with the hierarchies of control groups. */
export const HIERARCHIES = '/sys/fs/cgroup';
/** Time limit until killed processes have left their groups. Usually this takes milliseconds. */
const EMPTY_MILLISECONDS = 60_000;

/** Removes a group and its subgroups, except groups with a running process. Returns true when all were removed. */
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

/** Removes a node's groups in every hierarchy. Resolves once no process runs in them. */
export async function removeGroups(name: string): Promise<void> {
  for (const hierarchy of await readdir(HIERARCHIES)) {
    const group = join(HIERARCHIES, hierarchy, name);
    await waitFor(`the processes of ${group} to end`, () => removeGroup(group), {
      deadlineMilliseconds: EMPTY_MILLISECONDS,
    });
  }
}
