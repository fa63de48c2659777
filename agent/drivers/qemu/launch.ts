/** Makes a QEMU process that outlives the agent. */
import { type ChildProcess, spawn } from 'node:child_process';
import { open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { CgroupTree } from '../../machines/cgroup.ts';
import { FILES } from '../../machines/folder.ts';
import { identify, type ProcessIdentity } from '../../machines/process.ts';
import { type MachineFolder, StartError } from '../driver.ts';

export interface Launched {
  child: ChildProcess;
  identity: ProcessIdentity;
}

/** Modules of QEMU (accelerators, displays) are found by its own built-in path. */
const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

/** A session and group of its own, output to a file, a control group of its own. Throws {@link StartError}. */
export async function launch(
  folder: MachineFolder,
  binary: string,
  parameters: string[],
  cgroups: CgroupTree,
): Promise<Launched> {
  const path = join(folder.path, FILES.log);
  await rm(path, { force: true });
  const log = await open(path, 'a', 0o600);
  try {
    const child = spawn(binary, parameters, {
      cwd: folder.path,
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
      env: ENVIRONMENT,
    });
    const pid = await pidOf(child);
    const identity = await identify(pid);
    if (identity === undefined) throw await endedAtOnce(child);
    await Promise.all([cgroups.add(folder.uid, pid), forgetOomScore(pid)]);
    child.unref();
    return { child, identity };
  } finally {
    await log.close();
  }
}

async function pidOf(child: ChildProcess): Promise<number> {
  return await new Promise((resolve, reject) => {
    child.once('error', (error) =>
      reject(new StartError('StartFailed', `the hypervisor cannot be executed: ${error.message}`)),
    );
    child.once('spawn', () => resolve(child.pid ?? 0));
  });
}

async function endedAtOnce(child: ChildProcess): Promise<StartError> {
  if (child.exitCode === null && child.signalCode === null) {
    await new Promise((resolve) => child.once('exit', resolve));
  }
  return new StartError('StartFailed', 'the hypervisor ended at once');
}

/** The agent's own score, raised for a container, would make its machines the kernel's first victims. */
async function forgetOomScore(pid: number): Promise<void> {
  if (process.platform !== 'linux') return;
  try {
    await writeFile(`/proc/${pid}/oom_score_adj`, '0');
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    // Lowering it is root's right; a process that has just ended is found out by whoever waits for it.
    if (code !== 'EACCES' && code !== 'EPERM' && code !== 'ENOENT' && code !== 'ESRCH') throw error;
  }
}
