/** Starts a QEMU process that outlives the agent. */
import { type ChildProcess, spawn } from 'node:child_process';
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { hasCode, messageOf, undefinedIf } from '../../../base/errors.ts';
import { run } from '../../../base/exec.ts';
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { MachineCgroups, MachineLimits } from '../../processes/cgroup.ts';
import { forgetLastWords, logsWritten, segmentName, withLogWriter } from '../../console/logwriter.ts';
import { makeTerminal } from '../../console/terminal.ts';
import type { OwnRoot } from '../../processes/ownroot.ts';
import { identify, type ProcessIdentity } from '../../processes/process.ts';
import { type VmLaunchPlan, type MachineFolder } from '../driver.ts';
import { commandLine } from './arguments.ts';
import { giveDisk, requireOwnData } from './disk.ts';
import type { Platform } from './platform.ts';
import { FILES, type MachineFile } from './state.ts';

/** Objects and settings that all machines of one driver share. */
export interface MachineContext {
  logger: Logger;
  cgroups: MachineCgroups;
  /** Root directory of the machines' processes, if they do not share the agent's root directory. */
  ownRoot: OwnRoot | undefined;
  /** Whether the agent is root. QEMU then gives up root once it has opened everything. */
  isRoot: boolean;
  /** Linux group (gid) that may read images. Programs that read a machine's disk have this group. */
  readers: number | undefined;
  changed: (uid: string) => void;
  /** Begins to store the console of a running machine and to set its DPI. `found` means that an earlier agent started the machine. */
  follow: (folder: MachineFolder, how: 'started' | 'found') => void;
}

/** Exit status of a process that this agent started. The agent gets no status of a process that an earlier agent started. */
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
  /** Files outside of the machine's folder that the command opens. */
  files: readonly string[];
  limits: MachineLimits;
}

/** Environment of the process. QEMU finds its modules (accelerators, displays) by its own built-in path. */
const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };
/** Time limit of a test of the log writer's interpreter. It ends 3 ms after its start, on an overloaded host after seconds. */
const INTERPRETER_TIMEOUT_MILLISECONDS = 30_000;

/**
 * Checks that the machines' log writer can run. The agent calls this when it starts, so that an error appears before the first machine
 * starts. @throws Error when the log writer cannot run.
 */
export async function requireLogWriter(): Promise<void> {
  const [interpreter] = withLogWriter([]);
  try {
    const timeoutMilliseconds = INTERPRETER_TIMEOUT_MILLISECONDS;
    await run(interpreter, ['-e', '1'], { environment: ENVIRONMENT, timeoutMilliseconds });
  } catch (error) {
    const why = `The log writer of machines cannot run and needs ${interpreter} in ${ENVIRONMENT.PATH}`;
    throw new Error(`${why}: ${messageOf(error)}`, { cause: error });
  }
}

export interface MachineStart {
  plan: VmLaunchPlan;
  state: MachineFile;
  platform: Platform;
  /** Whether the process waits for the memory of a suspended machine. */
  incoming: boolean;
}

/**
 * Checks the machine's disk, makes the machine's user its owner, and starts the process. @throws ReasonedError when the check refuses
 * the disk or the process does not start.
 */
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
  const hasScreen = state.launched?.screen?.card !== undefined;
  const limits = limitsOf({ cpu, memoryBytes, accelerator: platform.accelerator, hasScreen });
  return await launch(folder, { command: [platform.binary, ...parameters], files, limits }, context);
}

/**
 * Starts a process with a session, a process group, a control group and a log writer of its own. If machines have a root directory of
 * their own, the process runs there. @throws ReasonedError when the process does not start.
 */
async function launch(
  folder: MachineFolder,
  { command, files, limits }: LaunchOptions,
  { cgroups, ownRoot }: Pick<MachineContext, 'cgroups' | 'ownRoot'>,
): Promise<Launched> {
  const logged = withLogWriter(command);
  const [program, ...parameters] = ownRoot?.enclose({ folder: folder.path, files }, logged) ?? logged;
  await logsWritten(folder.path);
  await Promise.all([forgetLastWords(folder.path), makeTerminal(folder.path)]);
  // This file gets the output before the log writer runs; the log writer then continues the file.
  const log = await open(join(folder.path, segmentName('hypervisor', 0)), 'a', 0o600);
  try {
    const child = spawn(program, parameters, {
      cwd: folder.path,
      detached: true,
      stdio: ['pipe', log.fd, log.fd],
      env: ENVIRONMENT,
    });
    // If the process has ended, the byte below cannot be sent. The caller notices the end because the process does not answer.
    child.stdin?.on('error', () => undefined);
    const exited = new Promise<ExitStatus>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
    });
    const pid = await pidOf(child);
    const identity = await identify(pid);
    if (identity === undefined) {
      throw new ReasonedError('StartFailed', 'The hypervisor ended at once');
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
      reject(new ReasonedError('StartFailed', `The hypervisor cannot be executed: ${error.message}`)),
    );
    child.once('spawn', () => resolve(child.pid ?? 0));
  });
}

/**
 * Sets the OOM score adjustment of the process to 0. The process inherits the agent's value. A higher value, as containers have, would
 * make the kernel kill machines first when the host lacks memory.
 */
async function forgetOomScore(pid: number): Promise<void> {
  if (process.platform !== 'linux') {
    return;
  }
  // Only root may lower the score. If the process has just ended, the caller notices this because the process does not answer.
  await undefinedIf(
    hasCode('EACCES', 'EPERM', 'ENOENT', 'ESRCH'),
    writeFile(`/proc/${pid}/oom_score_adj`, '0'),
  );
}

const MEBIBYTE = 1024 ** 2;
/** Memory in bytes of QEMU's own code, its devices and screen, and its disk cache, as measured in docs/develop/performance.md. */
const PROCESS_BYTES = 256 * MEBIBYTE;
/** Memory in bytes of QEMU for the stacks and state of each virtual processor. */
const PROCESSOR_BYTES = 16 * MEBIBYTE;
/**
 * Overhead of QEMU as a share of the guest's memory. Page tables use 1/512, and each bitmap of written pages uses 1/32768. The rest is
 * margin.
 */
const MEMORY_SHARE = 1 / 64;
/** Memory in bytes that a guest may keep in its graphics card: QEMU's default (`max_hostmem`), enough for several screens of 3840×2160. */
const SCREEN_BYTES = 256 * MEBIBYTE;
/** Memory in bytes of QEMU for translated code, if it emulates the processor. QEMU keeps 1 GiB at most (`tb-size`). */
const TRANSLATION_BYTES = 1024 * MEBIBYTE;
/** Limit of QEMU's threads beside one per virtual processor: up to 64 for the disk, and others for screen, timers and copies. */
const THREADS = 128;

/** Returns the limits of memory, processes and CPU for the process of one machine on its host. */
function limitsOf(launched: {
  cpu: number;
  memoryBytes: number;
  accelerator: string;
  hasScreen: boolean;
}): MachineLimits {
  const { cpu, memoryBytes, accelerator, hasScreen } = launched;
  const own = PROCESS_BYTES + cpu * PROCESSOR_BYTES + Math.ceil(memoryBytes * MEMORY_SHARE);
  const overhead = own + (accelerator === 'tcg' ? TRANSLATION_BYTES : 0) + (hasScreen ? SCREEN_BYTES : 0);
  return { memoryBytes: memoryBytes + overhead, processes: THREADS + cpu, cpu };
}
