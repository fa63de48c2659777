/**
 * qemu-img, in the one way in which it is run: formats are always said by us, limits are always set, and what reads bytes
 * of strangers runs as a user that owns nothing. Such a program is given open files: it can open no path of ours.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { constants, setPriority } from 'node:os';
import { resolve } from 'node:path';
import { codeOf } from '../../base/errors.ts';
import { run, type RunningProgram, type RunOptions, start } from '../../base/exec.ts';
import type { RunAs } from '../machines/users.ts';

/** Its own code takes 40 MiB, and each thread that reads reserves the room of a stack. */
const ADDRESS_SPACE_BYTES = 4 * 1024 ** 3;
const OPEN_FILES = 64;
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

/** One that runs: read its output, then wait for its end. */
export function startQemuImg(parameters: [string, ...string[]], options: QemuImgOptions): RunningProgram {
  const { mark, signal } = options;
  const running = start(...commandOf(parameters, options));
  if (mark !== undefined && running.pid !== undefined && signal?.aborted !== true) {
    yieldToGuests(running.pid);
  }
  return running;
}

/** Runs it to its end; its output. @throws ProgramError, or the reason of the signal. */
export async function qemuImg(
  parameters: [string, ...string[]],
  options: QemuImgOptions = {},
): Promise<string> {
  return await run(...commandOf(parameters, options));
}

function commandOf(
  [verb, ...parameters]: [string, ...string[]],
  options: QemuImgOptions,
): [string, string[], RunOptions] {
  const { as, files = [], folder, mark, signal, timeoutMilliseconds } = options;
  const name = mark === undefined ? [] : ['--object', markArgument(mark)];
  const [program = '', ...rest] = limited(['qemu-img', verb, ...name, ...parameters], options);
  const environment = { PATH: process.env['PATH'], LC_ALL: 'C' };
  const all = { name: `qemu-img ${verb}`, environment, as, files, folder, signal, timeoutMilliseconds };
  return [program, rest, all];
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
