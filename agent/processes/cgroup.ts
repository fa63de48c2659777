/**
 * Puts each machine into control groups of its own, one in each hierarchy, outside the agent's group. So when a container runtime or a
 * service manager ends all processes of the agent's group, the machines continue to run. Without root, or if control groups are not
 * writable, machines run without a group.
 */
import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { pause } from '../../base/time.ts';
import { hasCode, isMissing, isOfSystem, undefinedIf } from '../../base/errors.ts';
import { listFolders } from '../../base/files.ts';

/**
 * Largest number of attempts to remove a control group. All attempts together take 5 s. One attempt is not enough, because the kernel
 * releases a process's last thread some time after the process has ended.
 */
const REMOVE_ATTEMPTS = 200;
const REMOVE_INTERVAL_MILLISECONDS = 25;

/** Limits of the host's resources for one machine. */
export interface MachineLimits {
  memoryBytes: number;
  /** Largest number of threads of all the machine's processes together. */
  processes: number;
  /**
   * Number of processors of the machine. If the host has too few processors for all machines, this number determines the machine's share.
   */
  cpu: number;
}

/** Controllers for which a machine has limits. Both versions of control groups use these names. */
const CONTROLLERS = ['memory', 'pids', 'cpu'] as const;
type Controller = (typeof CONTROLLERS)[number];

/**
 * File of a group's share of the processors, in each version of control groups. `each` is the share for each processor of a machine: the
 * kernel's default, as in the kubelet. `most` is the largest share that the kernel accepts.
 */
const SHARE = {
  1: { file: 'cpu.shares', each: 1024, most: 262_144 },
  2: { file: 'cpu.weight', each: 100, most: 10_000 },
} as const;

/** Returns the name and the content of each file that sets a limit of a machine's control group. */
function limitFiles(
  controller: Controller,
  version: 1 | 2,
  { memoryBytes, processes, cpu }: MachineLimits,
): [file: string, value: string][] {
  switch (controller) {
    case 'memory':
      // When a machine reaches its memory limit, version 2 of control groups ends all processes of the machine. Version 1 ends only the
      // process that uses the most memory, which is the hypervisor.
      return version === 1
        ? [['memory.limit_in_bytes', String(memoryBytes)]]
        : [
            ['memory.max', String(memoryBytes)],
            ['memory.oom.group', '1'],
          ];
    case 'pids':
      return [['pids.max', String(processes)]];
    default: {
      const { file, each, most } = SHARE[version];
      return [[file, String(Math.min(most, each * cpu))]];
    }
  }
}

export class MachineCgroups {
  readonly #logger: Logger;
  readonly #search: readonly string[];
  #hierarchies: Promise<Hierarchy[]> | undefined;
  /** The last change of the share of all machines. A change must not overwrite a later one. */
  #shared: Promise<void> = Promise.resolve();

  /**
   * Prepares control groups for machines, but does not change the host yet. `roots` are the possible paths of the host's tree of control
   * groups.
   */
  constructor(logger: Logger, roots: readonly string[] = ROOTS) {
    this.#logger = logger;
    this.#search = roots;
  }

  /**
   * Sets the limits of the machine's control group, then moves a process and its threads into the group. Version 1 of control groups has
   * several hierarchies, and a machine has a group in each of them. If the move fails in one hierarchy, the machine runs outside its group
   * there, and the log names the group.
   */
  async add(machineUid: string, pid: number, limits: MachineLimits): Promise<void> {
    for (const hierarchy of await this.#roots()) {
      const group = machineGroup(hierarchy.path, machineUid);
      try {
        // A group of an earlier run can be left, because its removal failed or the agent died before it. Its count of killed processes would
        // explain the next end of the machine wrongly.
        await removeIfEmpty(group);
        await mkdir(group, { recursive: true });
        if (hierarchy.path.endsWith('/cpuset')) {
          await inheritCpuset(hierarchy.path, machineUid);
        }
        await this.#limit(hierarchy, machineUid, limits);
        await writeFile(join(group, 'cgroup.procs'), String(pid));
        await this.#share(hierarchy);
      } catch (error) {
        this.#logger.warn({ err: error, group }, 'A machine runs outside its control group');
      }
    }
  }

  /** Counts the processes of the machine that the kernel ended because the machine had reached its memory limit. */
  async memoryKills(machineUid: string): Promise<number> {
    for (const { path, version, controllers } of await this.#roots()) {
      if (!controllers.includes('memory')) {
        continue;
      }
      const file = join(
        machineGroup(path, machineUid),
        version === 1 ? 'memory.oom_control' : 'memory.events',
      );
      return Number(/^oom_kill (\d+)$/m.exec(await readText(file))?.[1] ?? 0);
    }
    return 0;
  }

  /** Returns the ids of the processes in the machine's control groups. */
  async processes(machineUid: string): Promise<number[]> {
    const pids = new Set<number>();
    for (const { path } of await this.#roots()) {
      const text = await readText(join(machineGroup(path, machineUid), 'cgroup.procs'));
      text
        .split('\n')
        .map(Number)
        // The id 0 is left out, because the kernel shows 0 for each process outside the agent's pid namespace.
        .filter((pid) => pid > 0)
        .forEach((pid) => pids.add(pid));
    }
    return [...pids];
  }

  /** Prevents the machine's processes from starting other processes, until the next {@link add} sets the limits again. */
  async forbidForks(machineUid: string): Promise<void> {
    for (const { path, controllers } of await this.#roots()) {
      if (controllers.includes('pids')) {
        // If the file cannot be written, the error is ignored, because the machine might run without a control group in this hierarchy.
        await undefinedIf(isOfSystem, writeFile(join(machineGroup(path, machineUid), 'pids.max'), '0'));
      }
    }
  }

  /** Removes the machine's control groups. Call this function after the machine's last process has ended. */
  async remove(machineUid: string): Promise<void> {
    for (const hierarchy of await this.#roots()) {
      const { path } = hierarchy;
      await removeGroup(machineGroup(path, machineUid));
      await removeIfEmpty(join(path, MACHINES_GROUP));
      await this.#share(hierarchy);
    }
  }

  /**
   * Gives the group of all machines the shares of its running machines together, and at most the shares of the host's processors, as the
   * kubelet does for its Pods. With the kernel's default, all machines would have as much of the processors as one other process or group of
   * the host. With more than the host's processors, machines would starve the rest of the host.
   */
  async #share({ path, version, controllers }: Hierarchy): Promise<void> {
    if (controllers.includes('cpu')) {
      this.#shared = this.#shared.then(
        async () => await undefinedIf(isOfSystem, shareAsMachines(path, SHARE[version])),
      );
    }
    await this.#shared;
  }

  async #limit(hierarchy: Hierarchy, machineUid: string, limits: MachineLimits): Promise<void> {
    const { path, version, controllers } = hierarchy;
    for (const controller of CONTROLLERS.filter((one) => controllers.includes(one))) {
      for (const [file, value] of limitFiles(controller, version, limits)) {
        const target = join(machineGroup(path, machineUid), file);
        try {
          if (version === 2) {
            await delegate(path, controller);
          }
          await writeFile(target, value);
        } catch (error) {
          this.#logger.warn(
            { err: error, file: target, value },
            'A limit of a machine could not be set, so the machine runs without it',
          );
        }
      }
    }
  }

  async #roots(): Promise<Hierarchy[]> {
    this.#hierarchies ??= this.#find();
    return await this.#hierarchies;
  }

  async #find(): Promise<Hierarchy[]> {
    if (process.platform !== 'linux' || process.getuid?.() !== 0) {
      return [];
    }
    const found = await findHierarchies(this.#search);
    const missing = CONTROLLERS.filter((one) => !found.some(({ controllers }) => controllers.includes(one)));
    if (missing.length > 0) {
      this.#logger.warn(
        { missing },
        'The host has no control groups for these resources, so machines run without these limits',
      );
    }
    return found;
  }
}

async function shareAsMachines(root: string, { file, each, most }: (typeof SHARE)[1 | 2]): Promise<void> {
  let sum = 0;
  for (const uid of await listFolders(join(root, MACHINES_GROUP))) {
    const group = machineGroup(root, uid);
    // A group without processes is left over from a machine that has ended.
    if ((await readText(join(group, 'cgroup.procs'))).trim() !== '') {
      sum += Number(await readText(join(group, file)));
    }
  }
  if (sum > 0) {
    const all = Math.min(most, each * availableParallelism(), sum);
    await writeFile(join(root, MACHINES_GROUP, file), String(all));
  }
}

/** Enables a controller in the parents of machines' groups. In cgroups version 2, a group has a controller's files only after this step. */
async function delegate(root: string, controller: Controller): Promise<void> {
  for (const group of [root, join(root, MACHINES_GROUP)]) {
    await writeFile(join(group, 'cgroup.subtree_control'), `+${controller}`);
  }
}

/**
 * Gives the machine's cpuset the same processors and memory nodes as the root. In version 1 of control groups, a new cpuset is empty, and
 * accepts no process until it has processors and memory nodes.
 */
async function inheritCpuset(hierarchy: string, machineUid: string): Promise<void> {
  for (const file of ['cpuset.cpus', 'cpuset.mems']) {
    const value = await readFile(join(hierarchy, file), 'utf8');
    await writeFile(join(hierarchy, MACHINES_GROUP, file), value);
    await writeFile(join(machineGroup(hierarchy, machineUid), file), value);
  }
}

async function removeGroup(group: string): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      await rmdir(group);
      return;
    } catch (error) {
      if (isMissing(error)) {
        return;
      }
      if (attempt === REMOVE_ATTEMPTS) {
        throw error;
      }
    }
    await pause(REMOVE_INTERVAL_MILLISECONDS);
  }
}

/** Removes a control group, if it contains neither processes nor other control groups. */
async function removeIfEmpty(group: string): Promise<void> {
  await undefinedIf(hasCode('EBUSY', 'ENOTEMPTY', 'ENOENT'), rmdir(group));
}

/**
 * Possible paths of the host's tree of control groups, tried in this order. In a privileged container with the host's process ids,
 * /sys/fs/cgroup is the container's own tree. Therefore the first path leads to the tree that the host's first process sees. The second
 * path is for containers without the right to read the first path.
 */
export const ROOTS = ['/proc/1/root/sys/fs/cgroup', '/sys/fs/cgroup'];
/** Group in each hierarchy that contains the groups of all machines. */
const MACHINES_GROUP = 'berth';
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
    const names = await readNames(root);
    if (names.includes(UNIFIED)) {
      const controllers = (await readText(join(root, UNIFIED))).trim().split(/\s+/);
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
export async function readText(file: string): Promise<string> {
  return (await undefinedIf(isOfSystem, readFile(file, 'utf8'))) ?? '';
}

async function readNames(folder: string): Promise<string[]> {
  return (await undefinedIf(hasCode('ENOENT', 'EACCES', 'EPERM'), readdir(folder))) ?? [];
}

async function isHierarchy(path: string): Promise<boolean> {
  return (await undefinedIf(isOfSystem, readFile(join(path, 'cgroup.procs')))) !== undefined;
}
