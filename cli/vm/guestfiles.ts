/** Copies files and folders between this computer and a guest, over the connection of a {@link GuestShell}. The guest needs sh and tar. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { chmod, lstat, mkdir, mkdtemp, open, readdir, readlink, rename, rm, stat } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { type Readable, Transform, type Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { codeOf, isMissing, messageOf, undefinedIf } from '../../base/errors.ts';
import { CommandError, EXIT, type ExitCode, RUN_EXIT } from '../errors.ts';
import type { Copy } from '../flags.ts';
import { printable } from '../text.ts';
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
 * Copies a file, or the content of a folder, out of the guest. `tell` gets a line about each entry of the folder that stays out.
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
  const output = child.stdout as Readable;
  const ended = shell.exitCode(child, signal);
  ended.catch(() => undefined);
  try {
    await mkdir(kind === 'folder' ? target : dirname(target), { recursive: true });
    await (kind === 'folder'
      ? unpack(output, target, tell, signal)
      : pipeline(output, bounded(), createWriteStream(target)));
  } catch (error) {
    signal.throwIfAborted();
    child.kill();
    throw new CommandError(`Copying ${what} failed: ${messageOf(error)}`, RUN_EXIT.copyOut);
  }
  requireSuccess(await ended, what, RUN_EXIT.copyOut);
}

/**
 * Unpacks the archive of a guest, which chooses names, types and permissions of the entries. They come into a new folder, because a link of
 * an earlier copy in the target could lead out of it. From there they move into the target, without those that could do harm.
 */
async function unpack(
  archive: Readable,
  target: string,
  tell: (line: string) => void,
  signal: AbortSignal,
): Promise<void> {
  const fresh = await mkdtemp(join(target, '.berth-'));
  try {
    // tar removes slashes at the start of names and refuses names with `..`.
    const unpacking = spawn('tar', ['-xf', '-', '--no-same-owner', '--no-same-permissions', '-C', fresh], {
      stdio: ['pipe', 'inherit', 'inherit'],
      signal,
    });
    const unpacked = once(unpacking, 'close') as Promise<[number | null]>;
    unpacked.catch(() => undefined);
    // tar can end before this process has closed its input. Then its exit code tells whether it has all.
    await undefinedIf(isEarlyEnd, pipeline(archive, bounded(), unpacking.stdin));
    const [code] = await unpacked;
    if (code !== 0) {
      throw new Error(`tar ended with exit code ${code}`);
    }
    const kept = await secureFolder(fresh, 0);
    kept.forEach((path) => tell(`${printable(join(target, relative(fresh, path)))} stays in the guest\n`));
    await moveEntries(fresh, target);
  } finally {
    await secureFolder(fresh, 0);
    await rm(fresh, { recursive: true, force: true });
  }
}

/**
 * Removes from an unpacked folder the links that lead out of it, devices and pipes, and the bits that give the rights of the owner to others.
 * `depth` is the number of folders above it. Returns the paths of the removed entries.
 */
async function secureFolder(folder: string, depth: number): Promise<string[]> {
  await chmod(folder, ((await lstat(folder)).mode & PERMISSIONS) | OWN_FOLDER);
  const removed: string[] = [];
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) {
      removed.push(...(await secureFolder(path, depth + 1)));
    } else if (entry.isFile()) {
      await chmod(path, (await lstat(path)).mode & PERMISSIONS);
    } else if (!entry.isSymbolicLink() || leadsOut(await readlink(path), depth)) {
      await rm(path);
      removed.push(path);
    }
  }
  return removed;
}

/** Permissions without the bits that give the rights of an owner to others. */
const PERMISSIONS = 0o777;
/** Permissions that the owner of a folder needs to list and to change it. */
const OWN_FOLDER = 0o700;

/** Returns whether a link could lead out of a folder, of which it is so many folders below. */
function leadsOut(link: string, depth: number): boolean {
  const parts = link.split('/').filter((part) => part !== '.');
  const ups = parts.findIndex((part) => part !== '..');
  const above = ups < 0 ? parts.length : ups;
  // After another folder, which can be a link, `..` could lead anywhere.
  return link.startsWith('/') || above > depth || parts.slice(above).includes('..');
}

/** Moves the entries of a folder into another one. Existing folders keep their entries, and everything else is replaced. */
async function moveEntries(from: string, to: string): Promise<void> {
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)];
    const there = await undefinedIf(isMissing, lstat(target));
    if (entry.isDirectory() && there?.isDirectory() === true) {
      await moveEntries(source, target);
      continue;
    }
    if (entry.isDirectory() && there !== undefined) {
      await rm(target);
    }
    await rename(source, target);
  }
}

function isEarlyEnd(error: unknown): boolean {
  return codeOf(error) === 'ERR_STREAM_PREMATURE_CLOSE';
}

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
