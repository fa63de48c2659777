/**
 * Starts detached processes and records them on disk, so that any later process can stop or restart them. A record also contains the start
 * time. If another process has the same process id later, that process is never killed.
 */
import { execFile, spawn } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from 'node:fs';
import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { codeOf, isMissing, undefinedIfSync } from '../../base/errors.ts';
import { parseStartTime } from '../../agent/processes/process.ts';
import { waitFor } from '../wait.ts';

export interface StartedProcess {
  pid: number;
  /** Start time in the system's own format. It is only compared. */
  startTime: string;
}

export interface ProcessPlan {
  /** Name of the log (`NAME.log`), the pid file (`NAME.pid`) and the record. */
  name: string;
  file: string;
  arguments: readonly string[];
  /** Variables added to this process's environment. They must not be secrets, because the record contains them. */
  environment?: Readonly<Record<string, string>>;
  /** Image of the container in which `file` runs; absent for a program of this machine. */
  image?: string | undefined;
}

export type ProcessRecord = ProcessPlan & StartedProcess;

/** Time limit after SIGTERM. A process that has not ended by then is killed. */
const TERMINATION_MILLISECONDS = 10_000;
/** Time limit after SIGKILL. The kernel ends a killed process at once, unless the process is blocked in a device, such as a slow disk. */
const KILL_MILLISECONDS = 60_000;

/** Starts a process in its own session, so that it outlives this process. */
export async function startProcess(directory: string, plan: ProcessPlan): Promise<ProcessRecord> {
  const log = openSync(join(directory, `${plan.name}.log`), 'a', 0o600);
  try {
    const child = spawn(plan.file, plan.arguments, {
      detached: true,
      stdio: ['ignore', log, log],
      env: { ...process.env, ...plan.environment },
    });
    const failed = new Promise<never>((_, reject) => {
      child.once('error', reject);
    });
    if (child.pid === undefined) {
      return await failed;
    }
    failed.catch(() => undefined);
    child.unref();
    return await recordProcess(directory, plan, child.pid);
  } finally {
    closeSync(log);
  }
}

/** Records a running process in this folder. */
export async function recordProcess(
  directory: string,
  plan: ProcessPlan,
  pid: number,
): Promise<ProcessRecord> {
  mkdirSync(join(directory, 'processes'), { recursive: true });
  const record = { ...plan, pid, startTime: (await startTimeOf(pid)) ?? 'ended' };
  writeFileSync(join(directory, `${plan.name}.pid`), `${pid}\n`);
  writeFileSync(join(directory, 'processes', `${plan.name}.json`), JSON.stringify(record));
  return record;
}

/** Returns every process that was started in this folder and not stopped since. */
export async function listProcesses(directory: string): Promise<ProcessRecord[]> {
  const names = await readdir(join(directory, 'processes')).catch((error: unknown) => {
    if (isMissing(error)) {
      return [];
    }
    throw error;
  });
  return names.flatMap((name) => {
    // Another process that removes the same cluster can have removed the record meanwhile.
    const read = () => readRecord(directory, name.replace(/\.json$/, ''));
    return undefinedIfSync(isMissing, read) ?? [];
  });
}

export function readRecord(directory: string, name: string): ProcessRecord {
  return JSON.parse(readFileSync(join(directory, 'processes', `${name}.json`), 'utf8')) as ProcessRecord;
}

/** Ends a process and resolves when it has ended. A process that has already ended is no error. */
export async function stopProcess(
  directory: string,
  record: ProcessRecord,
  signal: NodeJS.Signals = 'SIGTERM',
): Promise<void> {
  if (await signalProcess(record, signal)) {
    await waitFor(`${record.name} to end`, async () => !(await isAlive(record)), {
      deadlineMilliseconds: TERMINATION_MILLISECONDS,
    }).catch(() => killHard(record));
  }
  await rm(join(directory, 'processes', `${record.name}.json`), { force: true });
  await rm(join(directory, `${record.name}.pid`), { force: true });
}

async function killHard(record: ProcessRecord): Promise<void> {
  await signalProcess(record, 'SIGKILL');
  await waitFor(`killed ${record.name} (${record.pid}) to end`, async () => !(await isAlive(record)), {
    deadlineMilliseconds: KILL_MILLISECONDS,
  });
}

/** Sends a signal to exactly this process. Returns false when the process has ended. */
export async function signalProcess(identity: StartedProcess, signal: NodeJS.Signals): Promise<boolean> {
  if (!(await isAlive(identity))) {
    return false;
  }
  try {
    return process.kill(identity.pid, signal);
  } catch (error) {
    if (codeOf(error) === 'ESRCH') {
      return false;
    }
    throw error;
  }
}

export async function isAlive(identity: StartedProcess): Promise<boolean> {
  return (await startTimeOf(identity.pid)) === identity.startTime;
}

/** Returns the start time of a process. The result is undefined if no process has this id, or only a zombie. */
export async function startTimeOf(pid: number): Promise<string | undefined> {
  if (process.platform === 'linux') {
    return linuxStartTime(pid);
  }
  const { stdout } = await promisify(execFile)('ps', ['-o', 'lstart=', '-p', String(pid)]).catch(() => ({
    stdout: '',
  }));
  return stdout.trim() || undefined;
}

function linuxStartTime(pid: number): string | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch (error) {
    if (isMissing(error) || codeOf(error) === 'ESRCH') {
      return undefined;
    }
    throw error;
  }
  return parseStartTime(text);
}

/** Kills all recorded processes. It runs at the very end of this process, when asynchronous code no longer runs. */
export function killAllSync(directory: string): void {
  const folder = join(directory, 'processes');
  if (process.platform !== 'linux' || !existsSync(folder)) {
    return;
  }
  for (const name of readdirSync(folder)) {
    const record = JSON.parse(readFileSync(join(folder, name), 'utf8')) as ProcessRecord;
    if (linuxStartTime(record.pid) === record.startTime) {
      process.kill(record.pid, 'SIGKILL');
    }
  }
}
