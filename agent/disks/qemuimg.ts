/**
 * qemu-img, in the one way in which it is run. We always say the formats, and set limits. A program that reads bytes of strangers
 * runs as a user that owns nothing, and is given open files: it can open no path of ours.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { constants, setPriority } from 'node:os';
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import * as z from 'zod';
import { codeOf } from '../../base/errors.ts';
import { run, type RunAs, type RunningProgram, type RunOptions, start } from '../../base/exec.ts';
import type { BaseImage } from './disk.ts';

/** Its own code takes 40 MiB, and each thread that reads reserves the room of a stack. */
const ADDRESS_SPACE_BYTES = 4 * 1024 ** 3;
const OPEN_FILES = 64;
/** The first descriptor that a child has besides input, output and errors. */
const FIRST_FILE = 3;
/** A new or grown qcow2 is metadata only: some 14 ms for 100 GiB. */
const METADATA_LIMITS = { timeoutMilliseconds: 30_000 };
/** It reads a header in milliseconds. A hostile header may try to make it take for ever. */
const INFO_LIMITS = { timeoutMilliseconds: 10_000, addressSpaceBytes: 1024 ** 3 };
/** `    (12.34/100%)\r` */
const PROGRESS = /\((\d+(?:\.\d+)?)\/100%\)/g;

/** A block node as QEMU describes it, every file of it named. */
export type BlockNode = Record<string, unknown>;

interface Options {
  /** The user that it becomes, for bytes of strangers; undefined: the agent's own, as always where that is not root. */
  as?: RunAs | undefined;
  /** It finds them as {@link fileName}, by their order here. */
  files?: readonly FileHandle[];
  /** Where relative names begin. */
  folder?: string;
  /** An argument by which the process is found when the agent died. */
  mark?: string;
  signal?: AbortSignal;
  timeoutMilliseconds?: number;
  /** The most memory that it may ask for. */
  addressSpaceBytes?: number;
}

/** Makes a qcow2 at `path`: a blank one, or an overlay that shows `base` and keeps the guest's writes. @throws ProgramError */
export async function createQcow2(path: string, sizeBytes: number, base?: BaseImage): Promise<void> {
  // -u: the base was checked when it came into the store, and its size is given.
  const backing = base === undefined ? [] : ['-u', '-F', base.format, '-b', base.path];
  const parameters = ['-q', '-f', 'qcow2', ...backing, path, String(sizeBytes)];
  await runQemuImg(['create', ...parameters], METADATA_LIMITS);
}

/** Gives a disk another size. Relative names in `node` begin in `folder`; `as` reads it. @throws ProgramError */
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
 * qemu-img's own reading of a qcow2 header, as its JSON. `reader`: who reads it, where the agent is root.
 *
 * @throws ProgramError
 */
export async function qcow2Info(
  { path, file }: { path: string; file: FileHandle },
  reader: RunAs | undefined,
): Promise<string> {
  const name = reader === undefined ? path : fileName(0);
  const files = reader === undefined ? [] : [file];
  // With the format said, it follows nothing that the image names.
  const parameters = ['-U', '-f', 'qcow2', '--output=json', name];
  return await runQemuImg(['info', ...parameters], { ...INFO_LIMITS, as: reader, files });
}

/** Writes a raw disk as qcow2, with holes where it has zeros. @throws ProgramError, or the reason of the signal. */
export async function convertToQcow2(raw: string, target: string, signal: AbortSignal): Promise<void> {
  await runQemuImg(['convert', '-f', 'raw', '-O', 'qcow2', raw, target], { signal });
}

export interface ConvertOptions {
  /** Where relative names in the source begin. */
  folder: string;
  /** The agent finds the process by it after a restart: see {@link markArgument}. */
  mark: string;
  /** Who reads; undefined where the agent is not root. Files of the source must be readable for it. */
  as: RunAs | undefined;
  signal: AbortSignal;
  /** Called with more than 0. */
  onProgress: (percent: number) => void;
}

/**
 * Reads the disk `source` and writes it as a raw file with holes. The file at the absolute path `target` is not flushed when this
 * resolves. When it rejects, no process is left, but the bytes that were written are.
 *
 * @throws ProgramError, or the reason of the signal.
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
    // Made here, since qemu-img would let everybody read it.
    const to = await open(target, 'w+', 0o600);
    files.push(to);
    if (as !== undefined) {
      await to.chown(as.uid, as.gid);
    }
    const name = as === undefined ? target : fileName(files.length - 1);
    // One request at a time: guests share the disk and its hypervisor, and none of their requests waits for more than one of ours.
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
    // The reader's work is done: nobody else with its user may write to the copy.
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

/** The parts of a raw disk that are not holes, in order; one at a time, as a file may have any number. @throws ProgramError */
export async function* dataExtents(
  path: string,
  signal: AbortSignal,
): AsyncGenerator<Extent, void, undefined> {
  const parameters = ['-f', 'raw', '--output=json', path];
  const { output, ended, end } = startQemuImg(['map', ...parameters], { signal });
  try {
    // A list in JSON with one extent in each line.
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

/** The argument of a process with the mark. It makes an object that no node uses, because QEMU has no other argument for a name. */
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

/**
 * The path of an open file in the child: `index` counts {@link Options.files}. The kernel opens it anew, with the child's rights
 * on the file alone.
 */
function fileName(index: number): string {
  return `/proc/self/fd/${FIRST_FILE + index}`;
}

function jsonOf(node: BlockNode): string {
  return `json:${JSON.stringify(node)}`;
}

/**
 * Opens the files of a block node for a program that becomes another user, and names them such that it finds them. Relative names
 * begin in `folder`. The caller closes the files.
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
