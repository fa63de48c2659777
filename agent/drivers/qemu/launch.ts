/** Makes a QEMU process that outlives the agent. */
import { type ChildProcess, spawn } from 'node:child_process';
import { open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf } from '../../errors.ts';
import type { MachineLimits } from '../../machines/cgroup.ts';
import { FILES } from '../../machines/folder.ts';
import { identify, type ProcessIdentity } from '../../machines/process.ts';
import { type MachineFolder, StartError } from '../driver.ts';
import type { MachineContext } from './context.ts';

/** How a process that this agent started ended; a found one does not tell. */
export interface ExitStatus {
  code: number | null;
  signal: NodeJS.Signals | null;
}

export interface Launched {
  identity: ProcessIdentity;
  exited: Promise<ExitStatus>;
}

/** Modules of QEMU (accelerators, displays) are found by its own built-in path. */
const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

/** A session and group of its own, output to a file, a control group of its own, and a root of its own where there is one. Throws {@link StartError}. */
export async function launch(
  folder: MachineFolder,
  { command, limits }: { command: [string, ...string[]]; limits: MachineLimits },
  { cgroups, ownRoot }: Pick<MachineContext, 'cgroups' | 'ownRoot'>,
): Promise<Launched> {
  const [program, ...parameters] = ownRoot?.enclose(folder.path, command) ?? command;
  const path = join(folder.path, FILES.log);
  await rm(path, { force: true });
  const log = await open(path, 'a', 0o600);
  try {
    const child = spawn(program, parameters, {
      cwd: folder.path,
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
      env: ENVIRONMENT,
    });
    const exited = new Promise<ExitStatus>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
    });
    const pid = await pidOf(child);
    const identity = await identify(pid);
    if (identity === undefined) throw new StartError('StartFailed', 'the hypervisor ended at once');
    await Promise.all([cgroups.add(folder.uid, pid, limits), forgetOomScore(pid)]);
    child.unref();
    return { identity, exited };
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

/** The agent's own score, raised for a container, would make its machines the kernel's first victims. */
async function forgetOomScore(pid: number): Promise<void> {
  if (process.platform !== 'linux') return;
  try {
    await writeFile(`/proc/${pid}/oom_score_adj`, '0');
  } catch (error) {
    const code = codeOf(error);
    // Lowering it is root's right; a process that has just ended is found out by whoever waits for it.
    if (code !== 'EACCES' && code !== 'EPERM' && code !== 'ENOENT' && code !== 'ESRCH') throw error;
  }
}
