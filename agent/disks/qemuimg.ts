/**
 * Runs qemu-img. Every call states the formats and sets limits. A program that reads bytes of strangers runs as a user that owns
 * nothing, and gets open files. Therefore it cannot open a path of the agent.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { constants, setPriority } from 'node:os';
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import * as z from 'zod';
import { codeOf } from '../../base/errors.ts';
import { run, type RunAs, type RunningProgram, type RunOptions, start } from '../../base/exec.ts';
import type { BaseImage } from './disk.ts';

/** Limit of a process's address space. The code of qemu-img uses 40 MiB, and each reading thread reserves a stack. */
const ADDRESS_SPACE_BYTES = 4 * 1024 ** 3;
const OPEN_FILES = 64;
/** First descriptor of a child after input, output and errors. */
const FIRST_FILE = 3;
/** Time limit of calls that write metadata only. A new or grown qcow2 of 100 GiB takes some 14 ms. */
const METADATA_LIMITS = { timeoutMilliseconds: 30_000 };
/** Limits of reading a header, which takes milliseconds. A hostile header may try to delay the program without end. */
const INFO_LIMITS = { timeoutMilliseconds: 10_000, addressSpaceBytes: 1024 ** 3 };
/** Progress in the output of qemu-img: `    (12.34/100%)\r`. */
const PROGRESS = /\((\d+(?:\.\d+)?)\/100%\)/g;

/** A block node in QEMU's notation, with the names of all its files. */
export type BlockNode = Record<string, unknown>;

interface Options {
  /**
   * User that the process becomes, because it reads bytes of strangers. If undefined, the process keeps the agent's user; this is
   * always so if the agent is not root.
   */
  as?: RunAs | undefined;
  /** Open files of the process, which opens them by {@link fileName} in this order. */
  files?: readonly FileHandle[];
  /** Folder in which relative names begin. */
  folder?: string;
  /** Mark that identifies the process after the agent has died. */
  mark?: string;
  signal?: AbortSignal;
  timeoutMilliseconds?: number;
  /** Limit of the process's address space. */
  addressSpaceBytes?: number;
}

/**
 * Creates a qcow2 at `path`: a blank disk, or an overlay that shows `base` and stores the guest's writes. @throws ProgramError
 * when qemu-img fails.
 */
export async function createQcow2(path: string, sizeBytes: number, base?: BaseImage): Promise<void> {
  // With -u, qemu-img does not open the base. The base was checked when it came into the store, and its size is given.
  const backing = base === undefined ? [] : ['-u', '-F', base.format, '-b', base.path];
  const parameters = ['-q', '-f', 'qcow2', ...backing, path, String(sizeBytes)];
  await runQemuImg(['create', ...parameters], METADATA_LIMITS);
}

/**
 * Changes the size of a disk. Relative names in `node` begin in `folder`. If `as` is given, qemu-img runs as this user. @throws
 * ProgramError when qemu-img fails.
 */
export async function resizeDisk(
  node: BlockNode,
  sizeBytes: number,
  { folder, as }: { folder: string; as: RunAs | undefined },
): Promise<void> {
  const opened = as === undefined ? { node, files: [] } : await openNode(node, folder, 'r+');
  const { files } = opened;
  try {
    const parameters = ['-q', jsonOf(opened.node), String(sizeBytes)];
    await runQemuImg(['resize', ...parameters], { ...METADATA_LIMITS, as, files, folder });
  } finally {
    await closeAll(files);
  }
}

/**
 * Returns the header of a qcow2 as qemu-img reads it, in qemu-img's JSON. `reader` is the user of the process if the agent is
 * root.
 *
 * @throws ProgramError when qemu-img fails.
 */
export async function qcow2Info(
  { path, file }: { path: string; file: FileHandle },
  reader: RunAs | undefined,
): Promise<string> {
  const name = reader === undefined ? path : fileName(0);
  const files = reader === undefined ? [] : [file];
  // Because the format is given, qemu-img follows no name in the image.
  const parameters = ['-U', '-f', 'qcow2', '--output=json', name];
  return await runQemuImg(['info', ...parameters], { ...INFO_LIMITS, as: reader, files });
}

/**
 * Writes a raw disk as qcow2, with holes in place of zeros. @throws ProgramError when qemu-img fails, or the reason of the signal
 * when that aborts.
 */
export async function convertToQcow2(raw: string, target: string, signal: AbortSignal): Promise<void> {
  await runQemuImg(['convert', '-f', 'raw', '-O', 'qcow2', raw, target], { signal });
}

export interface ConvertOptions {
  /** Folder in which relative names of the source begin. */
  folder: string;
  /** Mark by which the agent finds the process after a restart; see {@link markArgument}. */
  mark: string;
  /** User of the process; undefined if the agent is not root. This user must be able to read the files of the source. */
  as: RunAs | undefined;
  signal: AbortSignal;
  /** Called with the progress, which is more than 0. */
  onProgress: (percent: number) => void;
}

/**
 * Reads the disk `source` and writes it as a raw file with holes to the absolute path `target`. The file is not flushed when the
 * promise resolves. When it rejects, no process is left, but the bytes already written stay.
 *
 * @throws ProgramError when qemu-img fails, or the reason of the signal when that aborts.
 */
export async function convertToRaw(
  source: BlockNode,
  target: string,
  { folder, mark, as, signal, onProgress }: ConvertOptions,
): Promise<void> {
  signal.throwIfAborted();
  const from = as === undefined ? { node: source, files: [] } : await openNode(source, folder, 'r');
  const files = [...from.files];
  try {
    // The agent creates the file, because qemu-img would make it readable for every user.
    const to = await open(target, 'w+', 0o600);
    files.push(to);
    if (as !== undefined) {
      await to.chown(as.uid, as.gid);
    }
    const name = as === undefined ? target : fileName(files.length - 1);
    // The copy makes one request at a time, because guests share the disk and its hypervisor. A guest's request then waits for at
    // most one request of the copy.
    const parameters = ['-p', '-m', '1', '-O', 'raw', jsonOf(from.node), name];
    const options = { as, files: as === undefined ? [] : files, folder, mark, signal };
    const { output, ended, pid } = startQemuImg(['convert', ...parameters], options);
    if (pid !== undefined && !signal.aborted) {
      yieldToGuests(pid);
    }
    output.setEncoding('utf8').on('data', (text: string) => {
      const percent = Number([...text.matchAll(PROGRESS)].at(-1)?.[1] ?? 0);
      if (percent > 0) {
        onProgress(percent);
      }
    });
    await ended;
    // The reader has ended. No other process with its user may write to the copy.
    if (as !== undefined) {
      await to.chown(0, 0);
    }
  } finally {
    await closeAll(files);
  }
  signal.throwIfAborted();
}

export interface Extent {
  start: number;
  length: number;
}

const extentSchema = z.object({ start: z.number(), length: z.number(), data: z.boolean() });

/**
 * Yields the parts of a raw disk that are not holes, in order. They come one at a time, because a file may have any number of
 * parts. @throws ProgramError when qemu-img fails.
 */
export async function* dataExtents(
  path: string,
  signal: AbortSignal,
): AsyncGenerator<Extent, void, undefined> {
  const parameters = ['-f', 'raw', '--output=json', path];
  const { output, ended, end } = startQemuImg(['map', ...parameters], { signal });
  try {
    // The output is a JSON list with one extent in each line.
    for await (const line of createInterface({ input: output })) {
      const text = line.replace(/^\[|[,\]]$/g, '').trim();
      if (text === '') {
        continue;
      }
      const { start, length, data } = extentSchema.parse(JSON.parse(text));
      if (data) {
        yield { start, length };
      }
    }
    await ended;
  } finally {
    end();
    await ended.catch(() => undefined);
  }
}

/**
 * Returns the argument that marks a process. It creates an object that no node uses, because QEMU has no other argument for a
 * name.
 */
export function markArgument(mark: string): string {
  return `throttle-group,id=${mark}`;
}

function startQemuImg(parameters: [string, ...string[]], options: Options): RunningProgram {
  return start(...commandOf(parameters, options));
}

async function runQemuImg(parameters: [string, ...string[]], options: Options): Promise<string> {
  return await run(...commandOf(parameters, options));
}

function commandOf(
  [verb, ...parameters]: [string, ...string[]],
  options: Options,
): [string, string[], RunOptions] {
  const { as, files = [], folder, mark, signal, timeoutMilliseconds } = options;
  const name = mark === undefined ? [] : ['--object', markArgument(mark)];
  const [program = '', ...rest] = limited(['qemu-img', verb, ...name, ...parameters], options);
  const environment = { PATH: process.env['PATH'], LC_ALL: 'C' };
  const all = { name: `qemu-img ${verb}`, environment, as, files, folder, signal, timeoutMilliseconds };
  return [program, rest, all];
}

function limited(command: string[], { addressSpaceBytes = ADDRESS_SPACE_BYTES }: Options): string[] {
  if (process.platform !== 'linux') {
    return command;
  }
  return ['prlimit', `--as=${addressSpaceBytes}`, '--core=0', `--nofile=${OPEN_FILES}`, ...command];
}

/** Lowers the priority of a long copy, so that guests get the processor first. */
function yieldToGuests(pid: number): void {
  try {
    setPriority(pid, constants.priority.PRIORITY_LOW);
  } catch (error) {
    // The process has already ended.
    if (codeOf(error) !== 'ERR_SYSTEM_ERROR') {
      throw error;
    }
  }
}

/**
 * Returns the path of an open file in the child; `index` is its place in {@link Options.files}. The kernel opens the file again,
 * and checks only the child's rights on the file itself.
 */
function fileName(index: number): string {
  return `/proc/self/fd/${FIRST_FILE + index}`;
}

function jsonOf(node: BlockNode): string {
  return `json:${JSON.stringify(node)}`;
}

/**
 * Opens the files of a block node for a program that becomes another user, and replaces their names by paths that this program
 * can open. Relative names begin in `folder`. The caller closes the files.
 */
async function openNode(
  node: BlockNode,
  folder: string,
  mode: 'r' | 'r+',
): Promise<{ node: BlockNode; files: FileHandle[] }> {
  const files: FileHandle[] = [];
  const named = async (one: BlockNode): Promise<BlockNode> => {
    const result: BlockNode = {};
    for (const [key, value] of Object.entries(one)) {
      if (key === 'filename' && typeof value === 'string') {
        files.push(await open(resolve(folder, value), mode));
        result[key] = fileName(files.length - 1);
      } else {
        result[key] =
          typeof value === 'object' && value !== null && !Array.isArray(value)
            ? await named(value as BlockNode)
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

async function closeAll(files: readonly FileHandle[]): Promise<void> {
  await Promise.all(files.map(async (file) => await file.close()));
}
