/** Removes what killed clusters leave on this machine: networks of agents, mounted disks, and control groups of nodes and containers. */
import { readdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { networkNames } from '../../agent/networkdriver.ts';
import { removal } from '../../agent/network/user.ts';
import { codeOf, undefinedIf } from '../../base/errors.ts';
import { ProgramError, run } from '../../base/exec.ts';
import { listFolders } from '../../base/files.ts';
import { waitFor } from '../wait.ts';

/** Time limit of nft, which ends within milliseconds. */
const NFT = { timeoutMilliseconds: 10_000 };

/**
 * Removes the nftables tables and the folders in /run of all agents whose data directories are in this folder. An agent leaves them if it is
 * killed, or if machines run when it ends. Call this function when the agents have ended, because a running agent loads its table again. If
 * nft is missing or this process may not use it, no agent has a table.
 */
export async function removeNetworks(directory: string): Promise<void> {
  const isUnusable = (error: unknown): boolean => error instanceof ProgramError;
  const tables = (await undefinedIf(isUnusable, run('nft', ['list', 'tables'], NFT))) ?? '';
  for (const host of await listFolders(directory)) {
    const { guardTable, runtimeDirectory } = networkNames(join(directory, host));
    if (tables.includes(`table inet ${guardTable}\n`)) {
      await run('nft', ['-f', '-'], { ...NFT, input: removal(guardTable) });
    }
    await rm(runtimeDirectory, { recursive: true, force: true });
  }
}

const MOUNTS = '/proc/self/mounts';

/** Unmounts the disks that a killed test left mounted below the folder, the innermost first. A mounted folder could not be removed. */
export async function unmountBelow(folder: string): Promise<void> {
  if (!existsSync(MOUNTS)) {
    return;
  }
  const points = readFileSync(MOUNTS, 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
    .filter((point) => point.startsWith(`${folder}/`));
  for (const point of points.toReversed()) {
    await promisify(execFile)('umount', [point]);
  }
}

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
