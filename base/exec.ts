/** Other programs: run without a shell, never longer and never with more output than the caller allows. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import type { FileHandle } from 'node:fs/promises';
import type { Readable, Writable } from 'node:stream';
import { codeOf } from './errors.ts';

/** Enough for the reason why a program failed, which comes last. */
const WORDS_LIMIT_CHARACTERS = 2_000;
/** What a program says that is asked one question. */
const OUTPUT_LIMIT_BYTES = 1024 * 1024;

/** A killed program says nothing new, but a program that it started may hold its pipes: they are read no longer than this. */
const DRAIN_MILLISECONDS = 1_000;

/** A user and group of this system, by their numbers. */
export interface RunAs {
  uid: number;
  gid: number;
}

export interface StartOptions {
  /** Begins the message of an error; the program's name when absent. */
  name?: string;
  /** After so long the program is killed. */
  timeoutMilliseconds?: number | undefined;
  /** Kills the program when it aborts. */
  signal?: AbortSignal | undefined;
  /** Its standard input, which is else empty. */
  input?: string | undefined;
  /** Where relative names begin. */
  folder?: string | undefined;
  /** This process's own when absent. */
  environment?: NodeJS.ProcessEnv | undefined;
  /** Whom the program becomes; only root may say this. */
  as?: RunAs | undefined;
  /** Open files that it gets as descriptors 3, 4 and so on. */
  files?: readonly FileHandle[];
}

export interface RunOptions extends StartOptions {
  /** `undefined` for a program that only its signal ends. */
  timeoutMilliseconds: number | undefined;
  /** With more on its standard output the program is killed. */
  outputLimitBytes?: number;
}

/** A program could not be started, or did not end with exit code 0. The message has the end of what it said. */
export class ProgramError extends Error {
  override readonly name = 'ProgramError';
  /** Undefined for a program that was killed or not started. */
  readonly exitCode: number | undefined;
  /** The end of its standard error. */
  readonly words: string;
  /** Of a program that could not be started, e.g. `ENOENT` when it is not installed. */
  readonly code: string | undefined;

  constructor(message: string, how: { exitCode?: number; words?: string; cause?: unknown }) {
    super(message, { cause: how.cause });
    this.exitCode = how.exitCode;
    this.words = how.words ?? '';
    this.code = codeOf(how.cause);
  }
}

export interface RunningProgram {
  pid: number | undefined;
  /** Somebody has to read it: a program whose output nobody takes stands still. */
  output: Readable;
  /** Resolves when the program has ended in order and all is read. @throws ProgramError */
  ended: Promise<void>;
  /** Kills it. */
  end: () => void;
}

type Child = ChildProcessByStdio<Writable | null, Readable, Readable>;

/** For a program whose output is read while it runs. The caller waits for `ended`. */
export function start(program: string, parameters: readonly string[], o: StartOptions = {}): RunningProgram {
  const { signal, timeoutMilliseconds, input, files = [] } = o;
  const child = spawn(program, parameters, {
    cwd: o.folder,
    env: o.environment,
    ...o.as,
    stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe', ...files.map(({ fd }) => fd)],
  }) as Child;
  const end = (): void => void child.kill('SIGKILL');
  signal?.addEventListener('abort', end);
  const ended = endOf(child, o.name ?? program, timeoutMilliseconds).finally(() => {
    signal?.removeEventListener('abort', end);
  });
  // The caller may first read the output to its end.
  ended.catch(() => undefined);
  // A program that ends before it has read everything says why on its standard error; the broken pipe says nothing.
  child.stdin?.on('error', () => undefined);
  child.stdin?.end(input);
  if (signal?.aborted === true) {
    end();
  }
  return { pid: child.pid, output: child.stdout, ended, end };
}

async function endOf(child: Child, name: string, timeoutMilliseconds: number | undefined): Promise<void> {
  let words = '';
  let isLate = false;
  const kill = (): void => {
    isLate = child.kill('SIGKILL');
  };
  const timer = timeoutMilliseconds === undefined ? undefined : setTimeout(kill, timeoutMilliseconds);
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    words = `${words}${text}`.slice(-WORDS_LIMIT_CHARACTERS);
  });
  let draining: NodeJS.Timeout | undefined;
  child.once('exit', () => {
    if (child.killed) {
      draining = setTimeout(() => closePipes(child), DRAIN_MILLISECONDS);
    }
  });
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  child.once('error', (cause) =>
    reject(new ProgramError(`${name} cannot be executed: ${cause.message}`, { cause })),
  );
  child.once('close', (code, killedBy) => {
    if (code === 0) {
      resolve();
      return;
    }
    const last = words.trim();
    const how = isLate
      ? `did not end within ${timeoutMilliseconds} ms`
      : `ended with ${killedBy ?? `code ${code}`}`;
    const message = `${name} ${how}${last === '' ? '' : `: ${last}`}`;
    reject(new ProgramError(message, { words: last, ...(code === null ? {} : { exitCode: code }) }));
  });
  try {
    await promise;
  } finally {
    clearTimeout(timer);
    clearTimeout(draining);
  }
}

function closePipes({ stdout, stderr }: Child): void {
  stdout.destroy();
  stderr.destroy();
}

/**
 * Runs a program to its end; its standard output.
 *
 * @throws ProgramError, or the reason of the signal.
 */
export async function run(
  program: string,
  parameters: readonly string[],
  options: RunOptions,
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
  try {
    await ended;
  } catch (error) {
    signal?.throwIfAborted();
    throw bytes > outputLimitBytes
      ? new ProgramError(`${options.name ?? program} wrote more than ${outputLimitBytes} bytes`, {
          cause: error,
        })
      : error;
  }
  return Buffer.concat(pieces).toString('utf8');
}
