/** Makes a QEMU process that outlives the agent. */
import { type ChildProcess, spawn } from 'node:child_process';
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, messageOf } from '../../../base/errors.ts';
import { run } from '../../../base/exec.ts';
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { MachineCgroups, MachineLimits } from '../../machines/cgroup.ts';
import { forgetLastWords, logsWritten, segmentName, withLogWriter } from '../../machines/logwriter.ts';
import type { OwnRoot } from '../../machines/ownroot.ts';
import { identify, type ProcessIdentity } from '../../machines/process.ts';
import { type LaunchPlan, type MachineFolder } from '../driver.ts';
import { commandLine } from './arguments.ts';
import { giveDisk, requireOwnData } from './disk.ts';
import type { Platform } from './platform.ts';
import { FILES, type MachineFile } from './state.ts';

/** What the machines of one driver share. */
export interface MachineContext {
  logger: Logger;
  cgroups: MachineCgroups;
  /** Where machines don't share the agent's. */
  ownRoot: OwnRoot | undefined;
  /** QEMU gives up root once everything is opened. */
  isRoot: boolean;
  /** The group that may read images; programs that read a machine's disk have it. */
  readers: number | undefined;
  changed: (uid: string) => void;
  /** Begins to keep the console of a machine that runs. */
  tail: (folder: MachineFolder) => void;
}

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

/** The machine's disk is looked at and given to the machine's user first. @throws ReasonedError */
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
  const files = [state.base?.path, plan.guest.iso].filter((file) => file !== undefined);
  const limits = limitsOf({ cpu, memoryBytes, accelerator: platform.accelerator });
  return await launch(folder, { command: [platform.binary, ...parameters], files, limits }, context);
}

/** A session and group of its own, a log writer, a control group of its own, and a root of its own where there is one. @throws ReasonedError */
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
      throw new ReasonedError('StartFailed', 'the hypervisor ended at once');
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
      reject(new ReasonedError('StartFailed', `the hypervisor cannot be executed: ${error.message}`)),
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

const MEBIBYTE = 1024 ** 2;
/** QEMU's own code, its devices and screen, and what it caches of the disk; measured: docs/develop/performance.md. */
const PROCESS_BYTES = 256 * MEBIBYTE;
/** A processor's stacks and state. */
const PROCESSOR_BYTES = 16 * MEBIBYTE;
/** Page tables take 1/512 of the memory, maps of what was written to it 1/32768 each; the rest is margin. */
const MEMORY_SHARE = 1 / 64;
/** Emulation keeps what it has translated: 1 GiB at most (`tb-size` of QEMU). */
const TRANSLATION_BYTES = 1024 * MEBIBYTE;
/** Beside one thread for each processor: up to 64 that read and write the disk, those of screen, timers and copies. */
const THREADS = 128;

/** The most that one machine may take of its host. */
function limitsOf(launched: { cpu: number; memoryBytes: number; accelerator: string }): MachineLimits {
  const { cpu, memoryBytes, accelerator } = launched;
  const emulation = accelerator === 'tcg' ? TRANSLATION_BYTES : 0;
  const overhead = PROCESS_BYTES + cpu * PROCESSOR_BYTES + Math.ceil(memoryBytes * MEMORY_SHARE) + emulation;
  return { memoryBytes: memoryBytes + overhead, processes: THREADS + cpu, cpu };
}
