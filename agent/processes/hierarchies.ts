/** Finds the host's control groups. Each machine has a group of its own in each hierarchy. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { hasCode, isOfSystem, undefinedIf } from '../../base/errors.ts';

/**
 * Possible paths of the host's tree of control groups, tried in this order. In a privileged container with the host's process ids,
 * /sys/fs/cgroup is the container's own tree. Therefore the first path leads to the tree that the host's first process sees. The second
 * path is for containers without the right to read the first path.
 */
export const ROOTS = ['/proc/1/root/sys/fs/cgroup', '/sys/fs/cgroup'];
/** Group in each hierarchy that contains the groups of all machines. */
export const MACHINES_GROUP = 'berth';
/** File by which the agent recognizes version 2 of control groups, which has a single tree. */
const UNIFIED = 'cgroup.controllers';

export interface Hierarchy {
  path: string;
  version: 1 | 2;
  /** Names of the hierarchy's controllers, for example `memory`. */
  controllers: readonly string[];
}

/** Returns the path of a machine's group in the hierarchy with the path `root`. */
export function machineGroup(root: string, machineUid: string): string {
  return join(root, MACHINES_GROUP, machineUid);
}

/** Returns the hierarchies of the first of `roots` that has any; empty if none has. */
export async function findHierarchies(roots: readonly string[]): Promise<Hierarchy[]> {
  for (const root of roots) {
    const names = await namesIn(root);
    if (names.includes(UNIFIED)) {
      const controllers = (await textOf(join(root, UNIFIED))).trim().split(/\s+/);
      return [{ path: root, version: 2, controllers }];
    }
    const hierarchies: Hierarchy[] = [];
    for (const name of names) {
      const path = join(root, name);
      // In version 1 of control groups a name like "cpu" can be a link to "cpu,cpuacct". Both names lead to the same group. So the agent
      // writes the limits of this group twice, which does no harm.
      if (await isHierarchy(path)) {
        hierarchies.push({ path, version: 1, controllers: name.split(',') });
      }
    }
    if (hierarchies.length > 0) {
      return hierarchies;
    }
  }
  return [];
}

/** Returns the content of a file; empty if the system cannot read the file. */
export async function textOf(file: string): Promise<string> {
  return (await undefinedIf(isOfSystem, readFile(file, 'utf8'))) ?? '';
}

async function namesIn(folder: string): Promise<string[]> {
  return (await undefinedIf(hasCode('ENOENT', 'EACCES', 'EPERM'), readdir(folder))) ?? [];
}

async function isHierarchy(path: string): Promise<boolean> {
  return (await undefinedIf(isOfSystem, readFile(join(path, 'cgroup.procs')))) !== undefined;
}
