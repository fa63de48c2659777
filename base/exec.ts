/** Finds programs, and runs them without a shell. The caller can limit the time and the output of a program. */
import { type ChildProcess, type ChildProcessByStdio, spawn } from 'node:child_process';
import { addAbortListener } from 'node:events';
import { access, constants as fileConstants, type FileHandle, stat } from 'node:fs/promises';
import { constants, setPriority } from 'node:os';
import { Readable, type Writable } from 'node:stream';
import { delimiter, join } from 'node:path';
import { codeOf, isOfSystem } from './errors.ts';

/**
 * Number of characters that are kept from a program's standard error. Only the end is kept, because programs write the reason for a failure
 * last.
 */
const OUTPUT_CHARACTERS = 2_000;
/** Default limit of a program's standard output, in bytes. Most programs write much less. */
const OUTPUT_LIMIT_BYTES = 1024 * 1024;

/**
 * Time limit in milliseconds for reading the pipes of a killed program. The limit is needed, because a child of the program can keep the
 * pipes open.
 */
const DRAIN_MILLISECONDS = 1_000;

/** Numeric IDs of a user and of a group on this system. */
export interface RunAs {
  uid: number;
  gid: number;
}

export interface StartOptions {
  /** Name of the program in error messages. The default is the name or path in the call. */
  name?: string;
  /** Time after which the program is killed, in milliseconds. The default is no limit. */
  timeoutMilliseconds?: number | undefined;
  /** If this signal aborts, the program is killed. */
  signal?: AbortSignal | undefined;
  /** Standard input of the program. The default is an empty input. */
  input?: string | undefined;
  /** Working folder of the program. Relative file names begin in this folder. */
  folder?: string | undefined;
  /** Environment of the program. The default is the environment of this process. */
  environment?: NodeJS.ProcessEnv | undefined;
  /** User and group under which the program runs. Set this field only if this process is root. */
  as?: RunAs | undefined;
  /** Function that takes the standard error while the program runs. */
  onErrorOutput?: ((text: string) => void) | undefined;
  /** Open files that the program gets as descriptors 3, 4 and so on. */
  files?: readonly FileHandle[];
}

export interface ProgramOptions extends StartOptions {
  /** Time after which the program is killed, in milliseconds. If it is undefined, the program has no time limit. */
  timeoutMilliseconds: number | undefined;
  /** Limit of the standard output, in bytes. A program that writes more is killed. */
  outputLimitBytes?: number;
}

/** Error when a program could not be started, or did not end with exit code 0. The message contains the last part of its standard error. */
export class ProgramError extends Error {
  override readonly name = 'ProgramError';
  /** Exit code. It is undefined if the program was killed or was not started. */
  readonly exitCode: number | undefined;
  /** Last part of the program's standard error. */
  readonly lastOutput: string;
  /** Error code of the operating system if the program could not be started, for example `ENOENT` if the program is not installed. */
  readonly code: string | undefined;
  /** Signal that ended the program. It is undefined if the program ended by itself or was not started. */
  readonly killedBy: NodeJS.Signals | undefined;
  /** Limit that the program exceeded: `time` or `output`. Undefined if the program failed for another reason. */
  readonly exceeded: 'time' | 'output' | undefined;

  constructor(
    message: string,
    how: Partial<Pick<ProgramError, 'exitCode' | 'lastOutput' | 'killedBy' | 'exceeded' | 'cause'>>,
  ) {
    super(message, { cause: how.cause });
    this.exitCode = how.exitCode;
    this.lastOutput = how.lastOutput ?? '';
    this.code = codeOf(how.cause);
    this.killedBy = how.killedBy;
    this.exceeded = how.exceeded;
  }
}

export interface RunningProgram {
  pid: number | undefined;
  /** Standard output. The caller must read this stream, because the program waits until its output is read. */
  output: Readable;
  /** Resolves when the program has ended with exit code 0 and its output was read. @throws ProgramError when it failed or was killed. */
  ended: Promise<void>;
  /** Kills the program. */
  end: () => void;
}

/**
 * Child process whose pipes can be undefined. If this process has no free file descriptors, Node.js creates the child without pipes, and
 * the child fails.
 */
type Child = Omit<ChildProcessByStdio<Writable | null, Readable, Readable>, 'stdout' | 'stderr'> & {
  stdout: Readable | undefined;
  stderr: Readable | undefined;
};

/** Starts a program and returns at once. The caller reads the output while the program runs, and then waits for `ended`. */
export function start(program: string, parameters: readonly string[], o: StartOptions = {}): RunningProgram {
  const { signal, input } = o;
  const child = spawnProgram(program, parameters, o);
  const end = (): void => void kill(child);
  const listener = signal && addAbortListener(signal, end);
  const ended = endOf(child, o.name ?? program, o).finally(() => listener?.[Symbol.dispose]());
  // The program can fail while the caller still reads the output and does not wait for `ended` yet. Without this line, the failure would be
  // an unhandled rejection.
  ended.catch(() => undefined);
  // If a program ends before it has read its whole input, the write to its input fails. This error is ignored, because the reason why the
  // program ended is in its standard error.
  child.stdin?.on('error', () => undefined);
  child.stdin?.end(input);
  return { pid: child.pid, output: child.stdout ?? Readable.from([]), ended, end };
}

function spawnProgram(program: string, parameters: readonly string[], o: StartOptions): Child {
  const { input, files = [] } = o;
  return spawn(program, parameters, {
    cwd: o.folder,
    env: o.environment,
    ...o.as,
    stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe', ...files.map(({ fd }) => fd)],
  }) as ChildProcessByStdio<Writable | null, Readable, Readable>;
}

async function endOf(
  child: Child,
  name: string,
  { timeoutMilliseconds, onErrorOutput }: StartOptions,
): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  child.once('error', (cause) =>
    reject(new ProgramError(`${name} cannot be executed: ${cause.message}`, { cause })),
  );
  let lastOutput = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    lastOutput = `${lastOutput}${text}`.slice(-OUTPUT_CHARACTERS);
    onErrorOutput?.(text);
  });
  let isLate = false;
  let draining: NodeJS.Timeout | undefined;
  const expire = (): void => {
    isLate = kill(child);
  };
  const timer = timeoutMilliseconds === undefined ? undefined : setTimeout(expire, timeoutMilliseconds);
  child.once('exit', () => {
    if (child.killed) {
      draining = setTimeout(() => closePipes(child), DRAIN_MILLISECONDS);
    }
  });
  child.once('close', (code, killedBy) => {
    if (code === 0) {
      resolve();
      return;
    }
    const last = lastOutput.trim();
    const how = isLate
      ? `did not end within ${timeoutMilliseconds} ms`
      : `ended with ${killedBy ?? `code ${code}`}`;
    const message = `${name} ${how}${last === '' ? '' : `: ${last}`}`;
    const exceeded = isLate ? 'time' : undefined;
    const end = { exitCode: code ?? undefined, killedBy: killedBy ?? undefined };
    reject(new ProgramError(message, { ...end, lastOutput: last, exceeded }));
  });
  try {
    await promise;
  } finally {
    clearTimeout(timer);
    clearTimeout(draining);
  }
}

/**
 * Kills the program. Returns false if the program had already ended. In that case, closes the pipes, because children of the program can
 * keep them open.
 */
function kill(child: Child): boolean {
  const isKilled = child.kill('SIGKILL');
  if (!isKilled) {
    closePipes(child);
  }
  return isKilled;
}

function closePipes({ stdout, stderr }: Child): void {
  stdout?.destroy();
  stderr?.destroy();
}

/**
 * Runs a program to its end and returns its standard output.
 *
 * @throws ProgramError when the program failed, or the signal's reason when the signal aborted.
 */
export async function run(
  program: string,
  parameters: readonly string[],
  options: ProgramOptions,
): Promise<string> {
  const { outputLimitBytes = OUTPUT_LIMIT_BYTES, signal } = options;
  const { output, ended, end } = start(program, parameters, options);
  const pieces: Buffer[] = [];
  let bytes = 0;
  output.on('data', (piece: Buffer) => {
    bytes += piece.length;
    if (bytes > outputLimitBytes) {
      end();
    } else {
      pieces.push(piece);
    }
  });
  const failure: unknown = await ended.then(
    () => undefined,
    (error: unknown) => error,
  );
  signal?.throwIfAborted();
  if (bytes > outputLimitBytes) {
    const message = `${options.name ?? program} wrote more than ${outputLimitBytes} bytes`;
    throw new ProgramError(message, { cause: failure, exceeded: 'output' });
  }
  if (failure !== undefined) {
    throw failure;
  }
  return Buffer.concat(pieces).toString('utf8');
}

/**
 * Kills `child` if it has not ended after this time in milliseconds. The option `timeout` of `spawn` must not be used instead, because its
 * timer stays if the program could not be started. This process would then run on until the time is over.
 */
export function limitTime(child: ChildProcess, milliseconds: number): void {
  const timer = setTimeout(() => child.kill('SIGKILL'), milliseconds);
  for (const event of ['error', 'exit']) {
    child.once(event, () => clearTimeout(timer));
  }
}

/** Lowers the priority of a process, so that other processes get the processor first. Does nothing if the process has ended. */
export function lowerPriority(pid: number): void {
  try {
    setPriority(pid, constants.priority.PRIORITY_LOW);
  } catch (error) {
    // `setPriority` fails with this code when the process has already ended.
    if (codeOf(error) !== 'ERR_SYSTEM_ERROR') {
      throw error;
    }
  }
}

/**
 * Returns the path of a program in the first folder of `PATH` that has it, as the system does when it starts a program by its name, or
 * undefined. An entry of `PATH` that is no folder or cannot be read is
 * skipped, and so is a file that this user may not execute. `more` are further folders, which are searched at last.
 */
export async function findProgram(name: string, more: readonly string[] = []): Promise<string | undefined> {
  for (const folder of [...(process.env['PATH'] ?? '').split(delimiter), ...more]) {
    const path = join(folder, name);
    if (await isProgram(path)) {
      return path;
    }
  }
  return undefined;
}

async function isProgram(path: string): Promise<boolean> {
  try {
    await access(path, fileConstants.X_OK);
    // Users have the right X_OK for folders that they may enter.
    return (await stat(path)).isFile();
  } catch (error) {
    if (isOfSystem(error)) {
      return false;
    }
    throw error;
  }
}
