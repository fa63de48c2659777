/**
 * Processes that outlive the agent: known by pid, start time and the host's boot, so that a pid used again is never
 * mistaken for a machine.
 */
import { readdir, readFile } from 'node:fs/promises';
import { codeOf, isMissing } from '../../base/errors.ts';
import { ProgramError, run } from '../../base/exec.ts';
import { pause } from '../../base/time.ts';

export interface ProcessIdentity {
  pid: number;
  /** Field 22 of /proc/PID/stat, or what `ps` says where there is no /proc. */
  startTime: string;
  bootId: string;
}

/** A killed process is gone when the kernel has freed its memory: some tens of milliseconds for a large guest. */
const EXIT_POLL_MILLISECONDS = 10;
/** SIGKILL cannot be refused; longer than this means a process stuck in the kernel (a dead network disk). */
const KILL_TIMEOUT_MILLISECONDS = 20_000;
/** `ps` and `sysctl` answer in milliseconds. */
const PROGRAM = { timeoutMilliseconds: 5_000 };

let cachedBootId: Promise<string> | undefined;

/** Changes with each boot of the host. */
export async function hostBootId(): Promise<string> {
  cachedBootId ??= readBootId();
  return await cachedBootId;
}

async function readBootId(): Promise<string> {
  if (process.platform === 'linux') {
    return (await readFile('/proc/sys/kernel/random/boot_id', 'utf8')).trim();
  }
  return (await run('sysctl', ['-n', 'kern.bootsessionuuid'], PROGRAM)).trim();
}

/** The identity of a live process; undefined when there is none, or only its remains. */
export async function identify(pid: number): Promise<ProcessIdentity | undefined> {
  const startTime = process.platform === 'linux' ? await startTimeFromProc(pid) : await startTimeFromPs(pid);
  return startTime === undefined ? undefined : { pid, startTime, bootId: await hostBootId() };
}

async function startTimeFromProc(pid: number): Promise<string | undefined> {
  let text: string;
  try {
    text = await readFile(`/proc/${pid}/stat`, 'utf8');
  } catch (error) {
    if (isMissing(error) || isGone(error)) {
      return undefined;
    }
    throw error;
  }
  return startTimeIn(text);
}

/**
 * Of a line of /proc/PID/stat; undefined for a zombie. A killed process looks like one as soon as its first thread has
 * ended: it holds its files, ports and locks until the last of its threads has.
 */
export function startTimeIn(text: string): string | undefined {
  // The command may hold spaces and brackets: fields are counted after the last ')'. 3 is state, 20 threads, 22 start time.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const [state, threads] = [fields[0], fields[17]];
  return state === 'X' || (state === 'Z' && threads === '1') ? undefined : fields[19];
}

async function startTimeFromPs(pid: number): Promise<string | undefined> {
  try {
    return (await run('ps', ['-o', 'lstart=', '-p', String(pid)], PROGRAM)).trim() || undefined;
  } catch (error) {
    // ps ends with 1 when there is no such process.
    if (error instanceof ProgramError && error.exitCode === 1) {
      return undefined;
    }
    throw error;
  }
}

export async function isAlive(identity: ProcessIdentity): Promise<boolean> {
  const now = await identify(identity.pid);
  return now !== undefined && now.startTime === identity.startTime && now.bootId === identity.bootId;
}

/** Waits for the end of a process; false when it still lives at the deadline. */
export async function waitForExit(identity: ProcessIdentity, timeoutMilliseconds: number): Promise<boolean> {
  const deadline = Date.now() + timeoutMilliseconds;
  while (await isAlive(identity)) {
    if (Date.now() >= deadline) {
      return false;
    }
    await pause(EXIT_POLL_MILLISECONDS);
  }
  return true;
}

/** Kills for certain: resolves when the process is gone, throws when the kernel does not let go of it. */
export async function killForCertain(identity: ProcessIdentity): Promise<void> {
  if (!(await isAlive(identity))) {
    return;
  }
  try {
    process.kill(identity.pid, 'SIGKILL');
  } catch (error) {
    if (!isGone(error)) {
      throw error;
    }
  }
  if (!(await waitForExit(identity, KILL_TIMEOUT_MILLISECONDS))) {
    throw new Error(`process ${identity.pid} did not end after SIGKILL`);
  }
}

/**
 * The process whose arguments hold `argument`, for a crash of the agent between making a process and writing down
 * its pid. Only where there is a /proc.
 */
export async function findByArgument(argument: string): Promise<ProcessIdentity | undefined> {
  if (process.platform !== 'linux') {
    return undefined;
  }
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  for (const pid of pids) {
    const parameters = await commandLine(pid);
    if (parameters.includes(argument)) {
      const identity = await identify(Number(pid));
      if (identity !== undefined) {
        return identity;
      }
    }
  }
  return undefined;
}

async function commandLine(pid: string): Promise<string[]> {
  try {
    return (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0');
  } catch (error) {
    if (isMissing(error) || isGone(error)) {
      return [];
    }
    throw error;
  }
}

function isGone(error: unknown): boolean {
  return codeOf(error) === 'ESRCH';
}
