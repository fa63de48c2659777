/** The control groups of nodes. */
import { readdir, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { isErrorCode } from '../../support/errors.ts';
import { waitFor } from '../../support/wait.ts';

const HIERARCHIES = '/sys/fs/cgroup';
/** Killed processes leave their groups within milliseconds. */
const EMPTY_MILLISECONDS = 20_000;

/** Removes a node's groups in every hierarchy; resolves once nothing runs in them any more. */
export async function removeGroups(name: string): Promise<void> {
  for (const hierarchy of await readdir(HIERARCHIES)) {
    const group = join(HIERARCHIES, hierarchy, name);
    await waitFor(`the processes of ${group} to end`, async () => await removeTree(group), {
      deadlineMilliseconds: EMPTY_MILLISECONDS,
    });
  }
}

/** The files in a group cannot be removed and need not be. */
async function removeTree(group: string): Promise<true> {
  try {
    const entries = await readdir(group, { withFileTypes: true });
    for (const entry of entries) if (entry.isDirectory()) await removeTree(join(group, entry.name));
    await rmdir(group);
  } catch (error) {
    if (!isErrorCode(error, 'ENOENT')) throw error;
  }
  return true;
}
