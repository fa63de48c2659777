/**
 * qemu-img, in the one way in which it is run: formats are always said by us, limits are always set, and what reads bytes
 * of strangers runs as a user that owns nothing. Such a program is given open files: it can open no path of ours.
 */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { type FileHandle, open } from 'node:fs/promises';
import { constants, setPriority } from 'node:os';
import { resolve } from 'node:path';
import type { Readable } from 'node:stream';
import { codeOf } from '../../base/errors.ts';
import type { RunAs } from '../machines/users.ts';

/** Its own code takes 40 MiB, and each thread that reads reserves the room of a stack. */
const ADDRESS_SPACE_BYTES = 4 * 1024 ** 3;
const OPEN_FILES = 64;
/** Of what it says, the end is kept. */
const WORDS_LIMIT_CHARACTERS = 2_000;
const OUTPUT_LIMIT_CHARACTERS = 1024 * 1024;
/** The first that a child has besides input, output and errors. */
const FIRST_FILE = 3;

export interface QemuImgOptions {
  /** Whom it becomes, for bytes of strangers; undefined: the agent's own user, as always where that is not root. */
  as?: RunAs | undefined;
  /** It finds them as {@link fileName}, by their order here. */
  files?: readonly FileHandle[];
  /** Where relative names begin. */
  folder?: string;
  /** An argument by which the process is found when the agent died. */
  mark?: string;
  signal?: AbortSignal;
  timeoutMilliseconds?: number;
  /** Most memory that it may ask for. */
  addressSpaceBytes?: number;
}

/** Ended with an error; the message has its last words. */
export class QemuImgError extends Error {
  override readonly name = 'QemuImgError';
}

/** A process that runs: read its output, then wait for its end. Ends with the signal, of which no process is left. */
export interface QemuImgRun {
  output: Readable;
  /** @throws QemuImgError */
  ended: Promise<void>;
  end: () => void;
}

export function startQemuImg(
  [verb, ...parameters]: [string, ...string[]],
  options: QemuImgOptions,
): QemuImgRun {
  const { mark, signal, timeoutMilliseconds } = options;
  const name = mark === undefined ? [] : ['--object', markArgument(mark)];
  const child = spawnLimited(['qemu-img', verb, ...name, ...parameters], options);
  const end = (): void => void child.kill('SIGKILL');
  const timer = timeoutMilliseconds === undefined ? undefined : setTimeout(end, timeoutMilliseconds);
  signal?.addEventListener('abort', end);
  const ended = exitOf(child, verb).finally(() => {
    clearTimeout(timer);
    signal?.removeEventListener('abort', end);
  });
  // Whoever reads the output waits for it later.
  ended.catch(() => undefined);
  if (signal?.aborted === true) {
    end();
  } else if (mark !== undefined && child.pid !== undefined) {
    yieldToGuests(child.pid);
  }
  return { output: child.stdout, ended, end };
}

type Child = ChildProcessByStdio<null, Readable, Readable>;

function spawnLimited(command: string[], options: QemuImgOptions): Child {
  const { as, files = [], folder } = options;
  const [program = '', ...rest] = limited(command, options);
  return spawn(program, rest, {
    ...(folder === undefined ? {} : { cwd: folder }),
    ...as,
    stdio: ['ignore', 'pipe', 'pipe', ...files.map(({ fd }) => fd)],
    env: { PATH: process.env['PATH'], LC_ALL: 'C' },
  }) as Child;
}

async function exitOf(child: Child, verb: string): Promise<void> {
  let words = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    words = `${words}${text}`.slice(-WORDS_LIMIT_CHARACTERS);
  });
  await new Promise<void>((done, fail) => {
    child.once('error', (error) => fail(new QemuImgError(`qemu-img cannot be executed: ${error.message}`)));
    child.once('close', (code, killed) => {
      if (code === 0) {
        done();
      } else {
        fail(new QemuImgError(`qemu-img ${verb} ended with ${killed ?? `code ${code}`}: ${words.trim()}`));
      }
    });
  });
}

/** Runs it to its end; its output. @throws QemuImgError, or the reason of the signal. */
export async function qemuImg(
  parameters: [string, ...string[]],
  options: QemuImgOptions = {},
): Promise<string> {
  const { output, ended, end } = startQemuImg(parameters, options);
  let text = '';
  output.setEncoding('utf8').on('data', (piece: string) => {
    text += piece;
    if (text.length > OUTPUT_LIMIT_CHARACTERS) {
      end();
    }
  });
  try {
    await ended;
  } finally {
    options.signal?.throwIfAborted();
  }
  return text;
}

/** By which a process with the mark is told from all others: an object that no node uses, as QEMU has no other argument for a name. */
export function markArgument(mark: string): string {
  return `throttle-group,id=${mark}`;
}

/** The path of an open file in the child: `index` counts {@link QemuImgOptions.files}. Opened anew by the kernel, with the child's rights on the file alone. */
export function fileName(index: number): string {
  return `/proc/self/fd/${FIRST_FILE + index}`;
}

/**
 * A block node with its files open, and named such that the program finds them; for programs that become another user.
 * Relative names begin in `folder`. The caller closes the files.
 */
export async function openNode(
  node: Record<string, unknown>,
  folder: string,
  mode: 'r' | 'r+' = 'r',
): Promise<{ node: Record<string, unknown>; files: FileHandle[] }> {
  const files: FileHandle[] = [];
  const named = async (one: Record<string, unknown>): Promise<Record<string, unknown>> => {
    const result: Record<string, unknown> = {};
    for (const [key, value] of Object.entries(one)) {
      if (key === 'filename' && typeof value === 'string') {
        files.push(await open(resolve(folder, value), mode));
        result[key] = fileName(files.length - 1);
      } else {
        result[key] =
          typeof value === 'object' && value !== null && !Array.isArray(value)
            ? await named(value as Record<string, unknown>)
            : value;
      }
    }
    return result;
  };
  try {
    return { node: await named(node), files };
  } catch (error) {
    await closeAll(files);
    throw error;
  }
}

export async function closeAll(files: readonly FileHandle[]): Promise<void> {
  await Promise.all(files.map(async (file) => await file.close()));
}

function limited(command: string[], { addressSpaceBytes = ADDRESS_SPACE_BYTES }: QemuImgOptions): string[] {
  if (process.platform !== 'linux') {
    return command;
  }
  return ['prlimit', `--as=${addressSpaceBytes}`, '--core=0', `--nofile=${OPEN_FILES}`, ...command];
}

/** A long copy lets guests go first. */
function yieldToGuests(pid: number): void {
  try {
    setPriority(pid, constants.priority.PRIORITY_LOW);
  } catch (error) {
    // It has ended already.
    if (codeOf(error) !== 'ERR_SYSTEM_ERROR') {
      throw error;
    }
  }
}
