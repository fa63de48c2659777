/** Starts the process of a machine. The process continues to run when the agent ends. */
import { type ChildProcess, spawn } from 'node:child_process';
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { hasCode, undefinedIf } from '../../base/errors.ts';
import { forgetLastWords, logsWritten, segmentName } from '../console/logwriter.ts';
import { makeTerminal } from '../console/terminal.ts';
import type { MachineCgroups, MachineLimits } from '../processes/cgroup.ts';
import { identify, type ProcessIdentity } from '../processes/process.ts';
import type { MachineFolder } from './driver.ts';

/** Exit status of a machine's process. If the agent restarts while the process runs, the agent never gets the exit status. */
export interface ExitStatus {
  code: number | null;
  signal: NodeJS.Signals | null;
}

export interface Launched {
  identity: ProcessIdentity;
  exited: Promise<ExitStatus>;
}

export interface LaunchOptions {
  /** Name of the program in messages: `hypervisor` or `emulator`. */
  name: string;
  /**
   * The whole command line, which includes the command line from `withLogWriter`. Each program of this command line must start the next
   * program by `exec`, so that the first process itself becomes the machine's process.
   */
  command: readonly [string, ...string[]];
  environment: NodeJS.ProcessEnv;
  limits: MachineLimits;
}

/**
 * Starts a process with a session, a process group, a control group and a log writer of its own. @throws ReasonedError when the process
 * does not start.
 */
export async function launch(
  folder: MachineFolder,
  { name, command: [program, ...parameters], environment, limits }: LaunchOptions,
  cgroups: MachineCgroups,
): Promise<Launched> {
  await logsWritten(folder.path);
  await Promise.all([forgetLastWords(folder.path), makeTerminal(folder.path)]);
  // The started process writes its output into this file until the log writer runs. The log writer then appends to the same file.
  const log = await open(join(folder.path, segmentName('hypervisor', 0)), 'a', 0o600);
  try {
    const child = spawn(program, parameters, {
      cwd: folder.path,
      detached: true,
      stdio: ['pipe', log.fd, log.fd],
      env: environment,
    });
    // The new process waits for a line feed on its standard input. If the process has already ended, writing the line feed causes an error.
    // This listener ignores the error, because the caller notices that the process does not answer.
    child.stdin?.on('error', () => undefined);
    const exited = new Promise<ExitStatus>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
    });
    const pid = await pidOf(child, name);
    const identity = await identify(pid);
    if (identity === undefined) {
      throw new ReasonedError('StartFailed', `The ${name} ended at once`);
    }
    await Promise.all([cgroups.add(folder.uid, pid, limits), forgetOomScore(pid)]);
    child.stdin?.end('\n');
    child.unref();
    return { identity, exited };
  } finally {
    await log.close();
  }
}

async function pidOf(child: ChildProcess, name: string): Promise<number> {
  return await new Promise((resolve, reject) => {
    child.once('error', (error) =>
      reject(new ReasonedError('StartFailed', `The ${name} cannot be executed: ${error.message}`)),
    );
    child.once('spawn', () => resolve(child.pid ?? 0));
  });
}

/**
 * Sets the OOM score adjustment of the process to 0. Otherwise the process would keep the agent's value, which is higher if the agent runs
 * in a container. With a higher value, the kernel would kill machines first when the host lacks memory.
 */
async function forgetOomScore(pid: number): Promise<void> {
  if (process.platform !== 'linux') {
    return;
  }
  // The score cannot be written if the agent is not root and has no right to lower it, or if the process has just ended. Both errors are
  // ignored. The caller notices an ended process, because this process does not answer.
  await undefinedIf(
    hasCode('EACCES', 'EPERM', 'ENOENT', 'ESRCH'),
    writeFile(`/proc/${pid}/oom_score_adj`, '0'),
  );
}
