/**
 * A control group per machine, in every hierarchy, outside the agent's own: what ends the agent's group (a container
 * runtime, a service manager) then leaves the machines alone. Without root, or where cgroups are not writable, machines
 * run without one.
 */
import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { codeOf, isMissing } from '../errors.ts';

/**
 * The host's tree. In a privileged container with the host's pids, /sys/fs/cgroup is the container's own, so the first
 * process's view comes first; not everybody may look through it.
 */
const ROOTS = ['/proc/1/root/sys/fs/cgroup', '/sys/fs/cgroup'];
const GROUP = 'berth';
/** A group can be removed when the kernel has let go of its last thread, a moment after the exit; on a busy host 5 s. */
const REMOVE_ATTEMPTS = 200;
const REMOVE_INTERVAL_MILLISECONDS = 25;

export class CgroupTree {
  readonly #logger: Logger;
  #hierarchies: Promise<string[]> | undefined;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** Moves a process and its threads into the machine's group; a hierarchy that refuses is left out, and said in the log. */
  async add(uid: string, pid: number): Promise<void> {
    for (const hierarchy of await this.#roots()) {
      const group = join(hierarchy, GROUP, uid);
      try {
        await mkdir(group, { recursive: true });
        if (hierarchy.endsWith('/cpuset')) await inheritCpuset(hierarchy, uid);
        await writeFile(join(group, 'cgroup.procs'), String(pid));
      } catch (error) {
        this.#logger.warn({ error: String(error), group }, 'machine runs outside its control group');
      }
    }
  }

  /** After the machine's last process. */
  async remove(uid: string): Promise<void> {
    for (const hierarchy of await this.#roots()) {
      await removeGroup(join(hierarchy, GROUP, uid));
      await removeIfEmpty(join(hierarchy, GROUP));
    }
  }

  async #roots(): Promise<string[]> {
    this.#hierarchies ??= findHierarchies();
    return await this.#hierarchies;
  }
}

async function findHierarchies(): Promise<string[]> {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) return [];
  for (const root of ROOTS) {
    const names = await namesIn(root);
    if (names.includes('cgroup.controllers')) return [root];
    const hierarchies: string[] = [];
    for (const name of names) {
      // In v1 names like "cpu" may be links to "cpu,cpuacct"; both lead to the same group, which does no harm.
      if (await isHierarchy(join(root, name))) hierarchies.push(join(root, name));
    }
    if (hierarchies.length > 0) return hierarchies;
  }
  return [];
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder);
  } catch (error) {
    if (isMissing(error) || isRefused(error)) return [];
    throw error;
  }
}

async function isHierarchy(path: string): Promise<boolean> {
  try {
    await readFile(join(path, 'cgroup.procs'));
    return true;
  } catch (error) {
    if (codeOf(error) !== undefined) return false;
    throw error;
  }
}

/** A v1 cpuset starts empty and takes no process until it has processors and memory. */
async function inheritCpuset(hierarchy: string, uid: string): Promise<void> {
  for (const file of ['cpuset.cpus', 'cpuset.mems']) {
    const value = await readFile(join(hierarchy, file), 'utf8');
    await writeFile(join(hierarchy, GROUP, file), value);
    await writeFile(join(hierarchy, GROUP, uid, file), value);
  }
}

async function removeGroup(group: string): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      await rmdir(group);
      return;
    } catch (error) {
      if (isMissing(error)) return;
      if (attempt === REMOVE_ATTEMPTS) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, REMOVE_INTERVAL_MILLISECONDS));
  }
}

/** The last machine's group takes the common one with it. */
async function removeIfEmpty(group: string): Promise<void> {
  try {
    await rmdir(group);
  } catch (error) {
    const code = codeOf(error);
    if (code !== 'EBUSY' && code !== 'ENOTEMPTY' && code !== 'ENOENT') throw error;
  }
}

function isRefused(error: unknown): boolean {
  const code = codeOf(error);
  return code === 'EACCES' || code === 'EPERM';
}
