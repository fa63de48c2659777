/**
 * Runs qemu-img. Every call states the image formats and sets limits. If a call reads untrusted data, qemu-img runs as a user that owns no
 * files. The agent opens the necessary files, and qemu-img inherits their file descriptors. Therefore qemu-img cannot open other files of
 * the agent.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import * as z from 'zod';
import { lowerPriority, run, type RunAs, type ProgramOptions, start } from '../../base/exec.ts';
import { type JsonLimits, parseJson } from '../../base/json.ts';
import type { BaseImage } from './disk.ts';

/**
 * Limit of the address space of a qemu-img process, in bytes. The program itself uses 40 MiB. In addition, each of its reading threads
 * reserves memory for a stack.
 */
const ADDRESS_SPACE_BYTES = 4 * 1024 ** 3;
const OPEN_FILES = 64;
/** First file descriptor of a child process after its standard input, output and error. */
const FIRST_FILE = 3;
/** Time limit of qemu-img calls that write only metadata. To create or enlarge a qcow2 file of 100 GiB, such a call takes about 14 ms. */
const METADATA_LIMITS = { timeoutMilliseconds: 30_000 };
/**
 * Limits of a call that reads a header. Such a call normally takes milliseconds. A hostile header can make qemu-img run without
 * end. The limit of CPU time stops such a call. If a call reaches the time limit instead, the cause is an overloaded host.
 */
const INFO_LIMITS = { timeoutMilliseconds: 60_000, addressSpaceBytes: 1024 ** 3, cpuSeconds: 10 };
/** Pattern of the progress in the output of qemu-img, such as ` (12.34/100%)\r`. */
const PROGRESS = /\((\d+(?:\.\d+)?)\/100%\)/g;

/** Description of a disk for QEMU: a block node in QEMU's notation, with the names of all its files. */
export type BlockNode = Record<string, unknown>;

interface Options {
  /**
   * The process runs as this user, because it reads untrusted data. If undefined, the process runs as the agent's user. The value is always
   * undefined if the agent is not root.
   */
  as?: RunAs | undefined;
  /** Open files that the process inherits. {@link fileName} returns the path by which the process opens a file of this list. */
  files?: readonly FileHandle[];
  /** Relative file names refer to this folder. */
  folder?: string;
  /** Text in the arguments of the process. After a restart, the agent finds the process by this text; see {@link markArgument}. */
  mark?: string;
  signal?: AbortSignal;
  timeoutMilliseconds?: number;
  /** Limit of the process's address space, in bytes. */
  addressSpaceBytes?: number;
  /** Limit of the process's CPU time. The kernel ends the process with SIGXCPU at this limit, and with SIGKILL at twice this limit. */
  cpuSeconds?: number;
}

/**
 * Creates a qcow2 file at `path` for a disk of `sizeBytes` bytes. Without `base`, the disk is blank. With `base`, the file is an overlay:
 * it shows the content of `base` and stores only the guest's writes. @throws ProgramError when qemu-img fails.
 */
export async function createQcow2(
  path: string,
  sizeBytes: number,
  base?: Pick<BaseImage, 'path' | 'format'>,
): Promise<void> {
  // With `-u`, qemu-img does not open the base. It need not open the base, because the agent checked the base when it stored the image, and
  // the arguments state the disk's size.
  const backing = base === undefined ? [] : ['-u', '-F', base.format, '-b', base.path];
  const parameters = ['-q', '-f', 'qcow2', ...backing, path, String(sizeBytes)];
  await run(...commandOf(['create', ...parameters], METADATA_LIMITS));
}

/**
 * Changes the size of the disk `node` to `sizeBytes`. Relative file names in `node` refer to `folder`. If `as` is given, qemu-img
 * runs as this user. @throws ProgramError when qemu-img fails.
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
    await run(...commandOf(['resize', ...parameters], { ...METADATA_LIMITS, as, files, folder }));
  } finally {
    await closeAll(files);
  }
}

/**
 * Returns the JSON text of `qemu-img info` about the header of a qcow2 file. qemu-img runs as the user `reader`. `reader` is undefined if
 * the agent is not root.
 *
 * @throws ProgramError when qemu-img fails.
 */
export async function qcow2Info(
  { path, file }: { path: string; file: FileHandle },
  reader: RunAs | undefined,
): Promise<string> {
  const name = reader === undefined ? path : fileName(0);
  const files = reader === undefined ? [] : [file];
  // The call states the format, because otherwise qemu-img guesses the format from the untrusted content.
  const parameters = ['-U', '-f', 'qcow2', '--output=json', name];
  return await run(...commandOf(['info', ...parameters], { ...INFO_LIMITS, as: reader, files }));
}

/** Converts the raw disk `raw` to the qcow2 file `target`, in which zeros use no space. @throws ProgramError or the signal's reason. */
export async function convertToQcow2(
  raw: string,
  target: string,
  { mark, signal, onProgress }: Pick<ConvertOptions, 'mark' | 'signal' | 'onProgress'>,
): Promise<void> {
  await convert(['-f', 'raw', '-O', 'qcow2', raw, target], { mark, signal, onProgress });
}

export interface ConvertOptions extends Required<Pick<Options, 'folder' | 'mark' | 'signal'>> {
  /** qemu-img runs as this user, who must have the right to read the files of the source. Undefined if the agent is not root. */
  as: RunAs | undefined;
  /** Called with the progress in percent, which is more than 0. */
  onProgress: (percent: number) => void;
}

/**
 * Reads the disk `source` and writes it as a raw file with holes to the absolute path `target`. When the promise resolves, the file is not
 * yet flushed to the disk. When the promise rejects, no process is left, but the incomplete file stays.
 *
 * @throws ProgramError when qemu-img fails, or the signal's reason when the signal aborts.
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
    // The agent creates the file, because a file that qemu-img creates is readable for every user.
    const to = await open(target, 'w+', 0o600);
    files.push(to);
    if (as !== undefined) {
      await to.chown(as.uid, as.gid);
    }
    const name = as === undefined ? target : fileName(files.length - 1);
    // Running guests and the copy use the same host disk. In addition, qemu-img can read the source through the hypervisor of a guest. With
    // `-m 1`, qemu-img makes one request at a time. Thus a request of a guest waits for at most one request of qemu-img.
    const parameters = ['-m', '1', '-O', 'raw', jsonOf(from.node), name];
    const inherited = as === undefined ? [] : files;
    await convert(parameters, { as, files: inherited, folder, mark, signal, onProgress });
    // qemu-img has ended. The file now belongs to root, so that no other process of qemu-img's user can write to it.
    if (as !== undefined) {
      await to.chown(0, 0);
    }
  } finally {
    await closeAll(files);
  }
}

/**
 * Writes the content of the uppermost file of the disk `node` to the file under it. The uppermost file stays as it is, so the disk shows the same
 * content at each moment. @throws ProgramError when qemu-img fails, or the signal's reason when the signal aborts.
 */
export async function commitDisk(
  node: BlockNode,
  { folder, mark, as, signal }: Omit<ConvertOptions, 'onProgress'>,
): Promise<void> {
  signal.throwIfAborted();
  const opened = as === undefined ? { node, files: [] } : await openNode(node, folder, 'r');
  const { files } = opened;
  try {
    const parameters = ['-q', '-d', jsonOf(opened.node)];
    const options = { as, files, folder, mark, signal };
    const { output, ended, pid } = start(...commandOf(['commit', ...parameters], options));
    output.resume();
    if (pid !== undefined) {
      lowerPriority(pid);
    }
    await ended.finally(() => signal.throwIfAborted());
  } finally {
    await closeAll(files);
  }
}

/** Runs `qemu-img convert` with a low priority, so that guests get the processor first. @throws ProgramError or the signal's reason. */
async function convert(
  parameters: readonly string[],
  options: Options & Pick<ConvertOptions, 'signal' | 'onProgress'>,
): Promise<void> {
  options.signal.throwIfAborted();
  const { output, ended, pid } = start(...commandOf(['convert', '-p', ...parameters], options));
  if (pid !== undefined) {
    lowerPriority(pid);
  }
  output.setEncoding('utf8').on('data', (text: string) => {
    const percent = Number([...text.matchAll(PROGRESS)].at(-1)?.[1] ?? 0);
    if (percent > 0) {
      options.onProgress(percent);
    }
  });
  await ended.finally(() => options.signal.throwIfAborted());
}

/** Limits of one extent. It has seven fields. */
const EXTENT_LIMITS: JsonLimits = { bytes: 4 * 1024, items: 32 };
const extentSchema = z.object({ start: z.number(), length: z.number(), data: z.boolean() });
export type Extent = Pick<z.infer<typeof extentSchema>, 'start' | 'length'>;

/**
 * Yields the parts of a raw disk that are not holes, in ascending order. The function does not return a list, because a list of all parts
 * could be too large for the memory. @throws ProgramError when qemu-img fails.
 */
export async function* dataExtents(path: string, signal: AbortSignal): AsyncGenerator<Extent, void> {
  const parameters = ['-f', 'raw', '--output=json', path];
  const { output, ended, end } = start(...commandOf(['map', ...parameters], { signal }));
  try {
    // The output is a JSON list of extents. Each line of the output contains one extent.
    for await (const line of createInterface({ input: output })) {
      const text = line.replace(/^\[|[,\]]$/g, '').trim();
      if (text === '') {
        continue;
      }
      const { start, length, data } = extentSchema.parse(parseJson(text, EXTENT_LIMITS));
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
 * Returns a value for the option `--object` of qemu-img. The agent later finds the qemu-img process by this value, which is one of the
 * process's arguments. The value defines a throttle group with the id `mark`. No disk uses this group. It only marks the process, because
 * qemu-img has no option for a mark.
 */
export function markArgument(mark: string): string {
  return `throttle-group,id=${mark}`;
}

function commandOf(
  [verb, ...parameters]: [string, ...string[]],
  options: Options,
): [string, string[], ProgramOptions] {
  const { as, files = [], folder, mark, signal, timeoutMilliseconds } = options;
  const name = mark === undefined ? [] : ['--object', markArgument(mark)];
  const [program = '', ...rest] = limited(['qemu-img', verb, ...name, ...parameters], options);
  const environment = { PATH: process.env['PATH'], LC_ALL: 'C' };
  const all = { name: `qemu-img ${verb}`, environment, as, files, folder, signal, timeoutMilliseconds };
  return [program, rest, all];
}

function limited(command: string[], options: Options): string[] {
  const { addressSpaceBytes = ADDRESS_SPACE_BYTES, cpuSeconds } = options;
  if (process.platform !== 'linux') {
    return command;
  }
  const cpu = cpuSeconds === undefined ? [] : [`--cpu=${cpuSeconds}:${2 * cpuSeconds}`];
  return ['prlimit', `--as=${addressSpaceBytes}`, '--core=0', `--nofile=${OPEN_FILES}`, ...cpu, ...command];
}

/**
 * Returns the path by which a child process opens an inherited file. `index` is the position of the file in {@link Options.files}. When the
 * child opens this path, the kernel checks the child's rights on the file itself, but not on its folders.
 */
function fileName(index: number): string {
  return `/proc/self/fd/${FIRST_FILE + index}`;
}

function jsonOf(node: BlockNode): string {
  return `json:${JSON.stringify(node)}`;
}

/**
 * Opens the files of a block node for a program that runs as another user. Returns the open files, and a copy of the node with paths that
 * this program can open. Relative names refer to `folder`. The caller closes the files.
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
