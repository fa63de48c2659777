/** Makes a QEMU process that outlives the agent. */
import { type ChildProcess, spawn } from 'node:child_process';
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, messageOf } from '../../../base/errors.ts';
import { run } from '../../../base/exec.ts';
import type { MachineLimits } from '../../machines/cgroup.ts';
import { FILES, type MachineFile } from '../../machines/folder.ts';
import { forgetLastWords, logsWritten, withLogWriter } from '../../machines/logwriter.ts';
import { identify, type ProcessIdentity } from '../../machines/process.ts';
import { segmentName } from '../../machines/segments.ts';
import { type LaunchPlan, type MachineFolder, StartError } from '../driver.ts';
import { commandLine } from './arguments.ts';
import type { MachineContext } from './context.ts';
import { giveDisk, requireOwnData } from './disk.ts';
import { limitsOf } from './limits.ts';
import type { Platform } from './platform.ts';

/** How a process that this agent started ended; a found one does not tell. */
export interface ExitStatus {
  code: number | null;
  signal: NodeJS.Signals | null;
}

export interface Launched {
  identity: ProcessIdentity;
  exited: Promise<ExitStatus>;
}

interface LaunchOptions {
  command: [string, ...string[]];
  /** Outside of the machine's folder, that the command opens. */
  files: readonly string[];
  limits: MachineLimits;
}

/** Modules of QEMU (accelerators, displays) are found by its own built-in path. */
const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };
/** It ends 3 ms after its start, on an overloaded host in seconds. */
const INTERPRETER_TIMEOUT_MILLISECONDS = 30_000;

/** For the agent's start, rather than the first machine's. @throws Error where the log writer cannot run. */
export async function requireLogWriter(): Promise<void> {
  const [interpreter] = withLogWriter([]);
  try {
    const timeoutMilliseconds = INTERPRETER_TIMEOUT_MILLISECONDS;
    await run(interpreter, ['-e', '1'], { environment: ENVIRONMENT, timeoutMilliseconds });
  } catch (error) {
    const why = `the log writer of machines cannot run, it needs ${interpreter} in ${ENVIRONMENT.PATH}`;
    throw new Error(`${why}: ${messageOf(error)}`, { cause: error });
  }
}

export interface MachineStart {
  plan: LaunchPlan;
  state: MachineFile;
  platform: Platform;
  /** Waits for the memory of a suspended machine. */
  incoming: boolean;
}

/** The machine's disk is looked at and given to the machine's user first. @throws StartError */
export async function launchMachine(
  folder: MachineFolder,
  { plan, state, platform, incoming }: MachineStart,
  context: Pick<MachineContext, 'cgroups' | 'ownRoot'>,
): Promise<Launched> {
  const { cpu, memoryBytes } = state.launched ?? plan;
  const { runAs } = plan;
  const { uid, path } = folder;
  if (state.diskBytes !== undefined) {
    await requireOwnData(join(path, FILES.disk));
  }
  if (runAs !== undefined) {
    await giveDisk(path, runAs);
  }
  const parameters = commandLine({ uid, plan, state, platform, cpu, memoryBytes, runAs, incoming });
  const files = [state.base?.path, plan.iso].filter((file) => file !== undefined);
  const limits = limitsOf({ cpu, memoryBytes, accelerator: platform.accelerator });
  return await launch(folder, { command: [platform.binary, ...parameters], files, limits }, context);
}

/** A session and group of its own, a log writer, a control group of its own, and a root of its own where there is one. @throws StartError */
async function launch(
  folder: MachineFolder,
  { command, files, limits }: LaunchOptions,
  { cgroups, ownRoot }: Pick<MachineContext, 'cgroups' | 'ownRoot'>,
): Promise<Launched> {
  const logged = withLogWriter(command);
  const [program, ...parameters] = ownRoot?.enclose({ folder: folder.path, files }, logged) ?? logged;
  await logsWritten(folder.path);
  await forgetLastWords(folder.path);
  // For what is said before the log writer is there, which goes on with this file.
  const log = await open(join(folder.path, segmentName('hypervisor', 0)), 'a', 0o600);
  try {
    const child = spawn(program, parameters, {
      cwd: folder.path,
      detached: true,
      stdio: ['pipe', log.fd, log.fd, 'ignore'],
      env: ENVIRONMENT,
    });
    // A process that has ended takes no byte; whoever waits for its answer finds that out.
    child.stdin?.on('error', () => undefined);
    const exited = new Promise<ExitStatus>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
    });
    const pid = await pidOf(child);
    const identity = await identify(pid);
    if (identity === undefined) {
      throw new StartError('StartFailed', 'the hypervisor ended at once');
    }
    await Promise.all([cgroups.add(folder.uid, pid, limits), forgetOomScore(pid)]);
    child.stdin?.end('\n');
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
  if (process.platform !== 'linux') {
    return;
  }
  try {
    await writeFile(`/proc/${pid}/oom_score_adj`, '0');
  } catch (error) {
    const code = codeOf(error);
    // Lowering it is root's right; a process that has just ended is found out by whoever waits for it.
    if (code !== 'EACCES' && code !== 'EPERM' && code !== 'ENOENT' && code !== 'ESRCH') {
      throw error;
    }
  }
}
