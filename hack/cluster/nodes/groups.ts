/** The control groups of nodes. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { HIERARCHIES, removeGroup } from '../controlgroups.ts';
import { waitFor } from '../../wait.ts';

/** Killed processes leave their groups within milliseconds. */
const EMPTY_MILLISECONDS = 20_000;

/** Removes a node's groups in every hierarchy; resolves once nothing runs in them any more. */
export async function removeGroups(name: string): Promise<void> {
  for (const hierarchy of await readdir(HIERARCHIES)) {
    const group = join(HIERARCHIES, hierarchy, name);
    await waitFor(`the processes of ${group} to end`, () => removeGroup(group), {
      deadlineMilliseconds: EMPTY_MILLISECONDS,
    });
  }
}
