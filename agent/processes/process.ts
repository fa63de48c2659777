/**
 * Functions for processes that continue to run when the agent ends. The agent identifies a process by its pid, its start time and the boot
 * id of the host. Therefore the agent never mistakes another process with a reused pid for a machine.
 */
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { createConnection, type Socket } from 'node:net';
import { join } from 'node:path';
import { hasCode, undefinedIf, undefinedIfSync } from '../../base/errors.ts';
import { ProgramError, run } from '../../base/exec.ts';
import { pause } from '../../base/time.ts';

export interface ProcessIdentity {
  pid: number;
  /** Start time of the process: field 22 of /proc/PID/stat, or the text that `ps` prints on hosts without /proc. */
  startTime: string;
  bootId: string;
}

/**
 * Time between two checks for the end of a process. The time is short, because a killed process usually ends within a few dozen
 * milliseconds, even if the kernel must free a large guest's memory.
 */
const EXIT_POLL_MILLISECONDS = 10;
/**
 * Time limit for the end of a process after SIGKILL. A process cannot refuse SIGKILL. A process that still exists 20 s later is stuck in
 * the kernel, for example on a dead network disk.
 */
const KILL_TIMEOUT_MILLISECONDS = 20_000;
/** Time limit of the programs `ps` and `sysctl`. These programs usually answer within milliseconds. */
const PROGRAM = { timeoutMilliseconds: 5_000 };
/** Limit of the list of all processes, in bytes. A command line can have some thousand characters. */
const PS_LIMIT_BYTES = 16 * 1024 * 1024;
/** Environment of `ps`. The time zone is fixed, because the printed start time of a process must not change with that of the host. */
export const PS_ENVIRONMENT = { PATH: process.env['PATH'], TZ: 'UTC', LC_ALL: 'C' };

let cachedBootId: Promise<string> | undefined;

/** Returns the boot id, which changes with each boot of the host. */
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

/** Returns the identity of a live process, or undefined if no such process exists or if the process is a zombie. */
export async function identify(pid: number): Promise<ProcessIdentity | undefined> {
  const startTime = process.platform === 'linux' ? await startTimeFromProc(pid) : await startTimeFromPs(pid);
  return startTime === undefined ? undefined : { pid, startTime, bootId: await hostBootId() };
}

async function startTimeFromProc(pid: number): Promise<string | undefined> {
  const text = await readIfAlive(`/proc/${pid}/stat`);
  return text === undefined ? undefined : parseStartTime(text);
}

/**
 * Returns the start time in a line of /proc/PID/stat, or undefined for a dead process. The state Z alone does not show that a process is
 * dead. A killed process has the state Z as soon as its main thread has ended. However, the process holds its files, ports and locks until
 * all its threads have ended.
 */
export function parseStartTime(text: string): string | undefined {
  // Field 3 is the state, 20 the number of threads, 22 the start time.
  const fields = parseFields(text);
  const [state, threads] = [fields[0], fields[17]];
  return state === 'X' || (state === 'Z' && threads === '1') ? undefined : fields[19];
}

/**
 * Returns the fields of a line of /proc/PID/stat, from field 3 on. The name of the command before them can contain spaces and brackets, so
 * the fields begin after the last ')'.
 */
export function parseFields(text: string): string[] {
  return text.slice(text.lastIndexOf(')') + 2).split(' ');
}

async function startTimeFromPs(pid: number): Promise<string | undefined> {
  // The exit code 1 of ps is not an error: it means that no such process exists.
  const isNone = (error: unknown): boolean => error instanceof ProgramError && error.exitCode === 1;
  const options = { ...PROGRAM, environment: PS_ENVIRONMENT };
  const text = await undefinedIf(isNone, run('ps', ['-o', 'lstart=', '-p', String(pid)], options));
  return text?.trim() || undefined;
}

export async function isAlive({ pid, startTime, bootId }: ProcessIdentity): Promise<boolean> {
  const now = await identify(pid);
  return now !== undefined && now.bootId === bootId && now.startTime === startTime;
}

/** Waits for the end of a process. Returns false if the process is alive at the deadline. */
export async function waitForExit(identity: ProcessIdentity, timeoutMilliseconds: number): Promise<boolean> {
  const deadline = performance.now() + timeoutMilliseconds;
  while (await isAlive(identity)) {
    if (performance.now() >= deadline) {
      return false;
    }
    await pause(EXIT_POLL_MILLISECONDS);
  }
  return true;
}

/**
 * Kills a process and resolves when it has ended.
 *
 * @throws Error when the kernel has not ended the process after 20 s.
 */
export async function killForCertain(identity: ProcessIdentity): Promise<void> {
  if (!(await isAlive(identity))) {
    return;
  }
  undefinedIfSync(hasCode('ESRCH'), () => process.kill(identity.pid, 'SIGKILL'));
  if (!(await waitForExit(identity, KILL_TIMEOUT_MILLISECONDS))) {
    throw new Error(`Process ${identity.pid} did not end after SIGKILL`);
  }
}

/**
 * Finds a process that has `wanted` among its arguments. Several arguments must follow each other directly. The agent needs this function
 * if it crashed between the start of a process and the storage of the pid.
 */
export async function findByArgument(...wanted: string[]): Promise<ProcessIdentity | undefined> {
  for await (const identity of allByArgument(wanted)) {
    return identity;
  }
  return undefined;
}

/** Finds all processes that {@link findByArgument} could find. */
export async function findAllByArgument(...wanted: string[]): Promise<ProcessIdentity[]> {
  const found: ProcessIdentity[] = [];
  for await (const identity of allByArgument(wanted)) {
    found.push(identity);
  }
  return found;
}

/**
 * Kills all processes that have this argument, or these arguments directly after each other, and resolves when they have ended. A child that was
 * started without a program of its own has the arguments of its parent. @throws Error if a process does not end.
 */
export async function killByArgument(...wanted: string[]): Promise<void> {
  for await (const identity of allByArgument(wanted)) {
    await killForCertain(identity);
  }
}

/** Returns those of these arguments that a live process has. All are looked for in one list of the processes. */
export async function findArguments(wanted: ReadonlySet<string>): Promise<Set<string>> {
  const found = new Set<string>();
  const { lines, between } = commandLines();
  for await (const { text } of lines) {
    text
      .split(between)
      .filter((argument) => wanted.has(argument))
      .forEach((argument) => found.add(argument));
  }
  return found;
}

async function* allByArgument(wanted: readonly string[]): AsyncGenerator<ProcessIdentity> {
  const { lines, between } = commandLines();
  const mark = `${between}${wanted.join(between)}${between}`;
  for await (const { pid, text } of lines) {
    const identity = `${between}${text}${between}`.includes(mark) ? await identify(pid) : undefined;
    if (identity !== undefined) {
      yield identity;
    }
  }
}

interface CommandLine {
  pid: number;
  text: string;
}

/** Returns the command lines of processes, and what is between two arguments. */
function commandLines(): { lines: AsyncGenerator<CommandLine>; between: string } {
  return process.platform === 'linux'
    ? { lines: processFiles('cmdline'), between: '\0' }
    : { lines: commandLinesFromPs(), between: ' ' };
}

/**
 * Yields the command lines of all processes of the agent's user. Machines have no users of their own on hosts without /proc. Everybody on the
 * host can start a process with the arguments of a machine, and the agent could not end it.
 */
async function* commandLinesFromPs(): AsyncGenerator<CommandLine> {
  const options = { ...PROGRAM, environment: PS_ENVIRONMENT, outputLimitBytes: PS_LIMIT_BYTES };
  const lines = (await run('ps', ['-axwwo', 'pid=,uid=,args='], options)).split('\n');
  const all = lines.flatMap((line) => {
    const [, pid, user, text = ''] = /^\s*(\d+)\s+(\d+)\s(.*)$/.exec(line) ?? [];
    return pid === undefined ? [] : [{ pid: Number(pid), user, text }];
  });
  const self = all.find(({ pid }) => pid === process.pid);
  for (const { pid, user, text } of all) {
    if (user === self?.user) {
      yield { pid, text };
    }
  }
}

/**
 * Yields the content of the file /proc/PID/`name` for each process of this host. The files are read one at a time, because a host can have
 * thousands of processes. On hosts without /proc, nothing is yielded.
 */
export async function* processFiles(name: 'cmdline' | 'mountinfo' | 'stat'): AsyncGenerator<CommandLine> {
  const pids = process.platform === 'linux' ? await readdir('/proc') : [];
  // EINVAL means that the process is a zombie. Only a read of `mountinfo` gives this error.
  const codes = name === 'mountinfo' ? ['EINVAL'] : [];
  for (const pid of pids.filter((entry) => /^\d+$/.test(entry))) {
    const text = await readIfAlive(`/proc/${pid}/${name}`, codes);
    if (text !== undefined) {
      yield { pid: Number(pid), text };
    }
  }
}

/**
 * Returns the content of a file of a process in /proc, or undefined if the process has ended. ENOENT, ESRCH and the error codes in `codes`
 * mean that the process has ended.
 */
async function readIfAlive(path: string, codes: readonly string[] = []): Promise<string | undefined> {
  return await undefinedIf(hasCode('ENOENT', 'ESRCH', ...codes), readFile(path, 'utf8'));
}

/** Error for a path that is too long for a socket of the system. */
export class SocketPathError extends Error {
  override readonly name = 'SocketPathError';
}

/** Longest path of a socket: `sun_path` holds 108 bytes on Linux and 104 on macOS, and the closing zero uses one byte. */
const SOCKET_PATH_LIMIT_BYTES = process.platform === 'linux' ? 107 : 103;

/**
 * Calls `use` with a path to the socket `folder/name`. The path is short enough for the system. The path is valid only until the promise of
 * `use` settles.
 *
 * @throws SocketPathError on hosts without /proc when the path is too long.
 */
export async function withSocketPath<T>(
  folder: string,
  name: string,
  use: (path: string) => Promise<T>,
): Promise<T> {
  const path = join(folder, name);
  if (Buffer.byteLength(path) <= SOCKET_PATH_LIMIT_BYTES) {
    return await use(path);
  }
  if (process.platform !== 'linux') {
    throw new SocketPathError(
      `The path ${path} is too long for a socket. The limit is ${SOCKET_PATH_LIMIT_BYTES} bytes: choose a shorter data directory`,
    );
  }
  const descriptor = openSync(folder, 'r');
  try {
    return await use(`/proc/self/fd/${descriptor}/${name}`);
  } finally {
    closeSync(descriptor);
  }
}

/**
 * Connects to a Unix socket.
 *
 * @throws Error of the system (ENOENT, ECONNREFUSED, EAGAIN) when no process listens.
 */
export async function connectTo(path: string): Promise<Socket> {
  const socket = createConnection(path);
  await once(socket, 'connect');
  return socket;
}
