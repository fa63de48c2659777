/** Copies files and folders between this computer and a guest, over the connection of a {@link GuestShell}. The guest needs sh and tar. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { lstat, mkdir, mkdtemp, open, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pipeline as connect, type Readable, Transform, type Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { isMissing, messageOf, undefinedIf } from '../../base/errors.ts';
import { CommandError, EXIT, type ExitCode, RUN_EXIT } from '../errors.ts';
import type { Copy } from '../flags.ts';
import { unpack } from './guestfolder.ts';
import { type GuestShell, inShell } from './guestshell.ts';

/** Largest copy out of a guest in bytes. A guest could otherwise fill the disk of this computer. */
const OUT_BYTES = 64 * 1024 ** 3;

/** Checks that the sources exist, before a VM is made. @throws CommandError when one of them is neither a file nor a folder. */
export async function requireSources(copies: readonly Copy[]): Promise<void> {
  for (const { source } of copies) {
    const found = await stat(source).catch((error: unknown) => {
      throw new CommandError(`--copy ${source}: ${messageOf(error)}`, EXIT.usage);
    });
    if (!found.isFile() && !found.isDirectory()) {
      throw new CommandError(`--copy ${source} must be a file or a folder`, EXIT.usage);
    }
  }
}

/** Copies a file, or the content of a folder, to a path of the guest. @throws CommandError when it fails; the signal's reason. */
export async function copyIn(
  shell: GuestShell,
  { source, target }: Copy,
  signal: AbortSignal,
): Promise<void> {
  const found = await stat(source);
  const isFolder = found.isDirectory();
  const script = isFolder
    ? 'mkdir -p "$1" && tar -xf - -C "$1"'
    : 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"';
  const command = inShell(script, [target, (found.mode & 0o777).toString(8)]);
  if (isFolder) {
    const packing = spawn('tar', ['-cf', '-', '-C', source, '.'], {
      stdio: ['ignore', 'pipe', 'inherit'],
      signal,
    });
    const packed = once(packing, 'close') as Promise<[number | null]>;
    packed.catch(() => undefined);
    const child = shell.start(command, { stdio: ['pipe', 'ignore', 'inherit'], signal });
    const ended = shell.exitCode(child, signal);
    ended.catch(() => undefined);
    // If one of the two programs fails, its exit code tells so.
    await pipeline(packing.stdout, child.stdin as Writable).catch(() => packing.kill());
    requireSuccess(await ended, `${source} to ${target}`, RUN_EXIT.copyIn);
    requireSuccess((await packed)[0], `${source} to ${target}`, RUN_EXIT.copyIn);
    return;
  }
  await using file = await open(source);
  const child = shell.start(command, { stdio: [file.fd, 'ignore', 'inherit'], signal });
  requireSuccess(await shell.exitCode(child, signal), `${source} to ${target}`, RUN_EXIT.copyIn);
}

/**
 * Copies a file, or the content of a folder, out of the guest. `tell` gets lines about entries of the folder that stay out.
 *
 * @throws CommandError when it fails; the signal's reason.
 */
export async function copyOut(
  shell: GuestShell,
  { source, target }: Copy,
  tell: (line: string) => void,
  signal: AbortSignal,
): Promise<void> {
  const test = 'if [ -d "$1" ]; then echo folder; elif [ -e "$1" ]; then echo file; fi';
  const { out } = await shell.read(inShell(test, [source]), signal);
  const kind = out.trim();
  const what = `${source} to ${target}`;
  if (kind !== 'folder' && kind !== 'file') {
    throw new CommandError(`The guest has no ${source} to copy out`, RUN_EXIT.copyOut);
  }
  const script = kind === 'folder' ? 'tar -cf - -C "$1" .' : 'cat "$1"';
  const child = shell.start(inShell(script, [source]), { stdio: ['ignore', 'pipe', 'inherit'], signal });
  // Node.js throws away what nobody has begun to read when a program ends. An error reaches the reader of `output`.
  const output = connect(child.stdout as Readable, bounded(), () => undefined);
  const ended = shell.exitCode(child, signal);
  ended.catch(() => undefined);
  try {
    await mkdir(kind === 'folder' ? target : dirname(target), { recursive: true });
    await (kind === 'folder' ? unpack(output, target, tell, signal) : writeTo(target, output));
  } catch (error) {
    signal.throwIfAborted();
    child.kill();
    throw new CommandError(`Copying ${what} failed: ${messageOf(error)}`, RUN_EXIT.copyOut);
  }
  requireSuccess(await ended, what, RUN_EXIT.copyOut);
}

/**
 * Writes a file beside the target and renames it, because a link of an earlier copy at the target could lead anywhere. Pipes, devices and open
 * files of this process are written as they are.
 */
async function writeTo(target: string, content: Readable): Promise<void> {
  const there = await undefinedIf(isMissing, lstat(target));
  if (OPEN_FILE.test(target) || (there !== undefined && !there.isFile() && !there.isSymbolicLink())) {
    await pipeline(content, createWriteStream(target));
    return;
  }
  const mode = there?.isFile() === true ? there.mode & PERMISSIONS : NEW_FILE;
  const fresh = await mkdtemp(join(dirname(target), '.berth-'));
  try {
    const file = join(fresh, 'file');
    await pipeline(content, createWriteStream(file, { mode }));
    await rename(file, target);
  } finally {
    await rm(fresh, { recursive: true, force: true });
  }
}

/** Links of the system to the open files of this process. */
const OPEN_FILE = /^\/(dev\/(std(in|out|err)|fd\/\d+)|proc\/self\/fd\/\d+)$/;
const PERMISSIONS = 0o777;
/** Permissions of a new file, from which the system takes those that the user does not want. */
const NEW_FILE = 0o666;

/** Returns a stream that passes bytes on, and fails after too many. */
function bounded(): Transform {
  let bytes = 0;
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      bytes += chunk.length;
      done(bytes > OUT_BYTES ? new Error(`it has more than ${OUT_BYTES} bytes`) : null, chunk);
    },
  });
}

function requireSuccess(code: number | null, what: string, exit: ExitCode): void {
  if (code !== 0) {
    throw new CommandError(`Copying ${what} failed with exit code ${code}`, exit);
  }
}
