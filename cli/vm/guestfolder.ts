/**
 * Unpacks the archive of a guest, which chooses names, types and permissions of the entries. Names are bytes, because those of a guest need
 * not be UTF-8.
 */
import { spawn } from 'node:child_process';
import { chmod, lstat, mkdtemp, readdir, readlink, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { hasCode, isMissing, undefinedIf } from '../../base/errors.ts';
import { run } from '../../base/exec.ts';
import { printable } from '../text.ts';

/** Most entries of an archive. Empty files need almost no bytes of it, and could take all files that the file system can have. */
const ENTRIES = 1_000_000;
/** Most folders in the paths of all entries together. One long path can make thousands of folders. */
const FOLDERS = 10 * ENTRIES;
/** Number of entries that are told by their names. */
const NAMED_ENTRIES = 20;
/** Time limit in milliseconds for the removal of what was unpacked. A slow disk removes some thousands of files in a second. */
const REMOVAL_MILLISECONDS = 1_200_000;
/** Number of links that the path of one link may go through, as in Linux. */
const LINKS = 40;
/** Permissions without the bits that give the rights of an owner to others. */
const PERMISSIONS = 0o777;
/** Permissions that the owner of a folder needs to list and to change it. */
const OWN_FOLDER = 0o700;
const SLASH = Buffer.from('/');
const HERE = Buffer.from('.');
const ABOVE = Buffer.from('..');

/** Paths in an unpacked folder, relative to it. */
interface Found {
  /** Links that lead to no place outside the folder, as far as only the folder decides. */
  readonly links: Buffer[];
  /** Removed entries. */
  readonly removed: Buffer[];
}

/**
 * Unpacks the archive into a new folder, because a link of an earlier copy in the target could lead out of it. From there the entries move
 * into the target, without those that could do harm. `tell` gets lines about these.
 */
export async function unpack(
  archive: Readable,
  target: string,
  tell: (line: string) => void,
  signal: AbortSignal,
): Promise<void> {
  const fresh = await mkdtemp(join(target, '.berth-'));
  try {
    await extract(archive, fresh, signal);
    const found: Found = { links: [], removed: [] };
    const [from, to] = [Buffer.from(fresh), Buffer.from(target)];
    await secureFolder(from, [], found);
    await removeForeign(from, to, found, signal);
    await moveEntries(from, to);
    tellRemoved(found.removed, target, tell);
  } finally {
    await removeFolder(fresh);
  }
}

/** Runs tar, and resolves when it has ended. tar removes slashes at the start of names and refuses names with `..`. */
async function extract(archive: Readable, folder: string, signal: AbortSignal): Promise<void> {
  // The tar of macOS tells the names of entries by its error stream.
  const [namesAt, errors] = process.platform === 'darwin' ? [2, 'pipe' as const] : [1, 'inherit' as const];
  const unpacking = spawn('tar', ['-xvf', '-', '--no-same-owner', '--no-same-permissions', '-C', folder], {
    stdio: ['pipe', 'pipe', errors],
    signal,
  });
  let failure: unknown;
  const fail = (error: unknown): void => {
    failure ??= error;
    unpacking.kill();
  };
  const { promise: closed, resolve } = Promise.withResolvers<number | null>();
  unpacking.once('error', fail).once('close', resolve);
  unpacking.stdio[namesAt]?.on('data', countEntries(fail));
  // tar can end before this process has closed its input. Then its exit code tells whether it has all.
  await pipeline(archive, unpacking.stdin as Writable).catch((error: unknown) =>
    isEarlyEnd(error) ? undefined : fail(error),
  );
  const code = await closed;
  if (failure !== undefined) {
    throw failure;
  }
  if (code !== 0) {
    throw new Error(`tar ended with exit code ${code}`);
  }
}

const isEarlyEnd = hasCode('ERR_STREAM_PREMATURE_CLOSE', 'EPIPE');

/** Returns a function that takes the names of entries, one a line. It calls `fail` when there are too many. */
function countEntries(fail: (error: Error) => void): (names: Buffer) => void {
  let [entries, folders] = [0, 0];
  return (names) => {
    for (const byte of names) {
      entries += byte === 0x0a ? 1 : 0;
      folders += byte === 0x2f ? 1 : 0;
    }
    if (entries > ENTRIES || folders > FOLDERS) {
      fail(new Error(`it has more than ${ENTRIES} entries, or more than ${FOLDERS} folders in their paths`));
    }
  };
}

/**
 * Removes from an unpacked folder the links that lead out of it, devices and pipes, and the bits that give the rights of the owner to others.
 * `parts` is the path of the part of it that is done now.
 */
async function secureFolder(root: Buffer, parts: readonly Buffer[], found: Found): Promise<void> {
  const folder = joined([root, ...parts]);
  await chmod(folder, ((await lstat(folder)).mode & PERMISSIONS) | OWN_FOLDER);
  for (const entry of await readdir(folder, { withFileTypes: true, encoding: 'buffer' })) {
    const own = [...parts, entry.name];
    const path = joined([root, ...own]);
    if (entry.isDirectory()) {
      await secureFolder(root, own, found);
    } else if (entry.isFile()) {
      await chmod(path, (await lstat(path)).mode & PERMISSIONS);
    } else if (entry.isSymbolicLink() && !leadsOut(await readLink(path), parts.length)) {
      found.links.push(joined(own));
    } else {
      await rm(path);
      found.removed.push(joined(own));
    }
  }
}

/** Returns whether a link could lead out of a folder, of which it is so many folders below. */
function leadsOut(link: Buffer, depth: number): boolean {
  const parts = partsOf(link);
  const ups = parts.findIndex((part) => !part.equals(ABOVE));
  const above = ups < 0 ? parts.length : ups;
  // After another folder, which can be a link, `..` could lead anywhere.
  return link[0] === SLASH[0] || above > depth || parts.slice(above).some((part) => part.equals(ABOVE));
}

/** Moves the entries of a folder into another one. Existing folders keep their entries, and everything else is replaced. */
async function moveEntries(from: Buffer, to: Buffer): Promise<void> {
  for (const entry of await readdir(from, { withFileTypes: true, encoding: 'buffer' })) {
    const [source, target] = [joined([from, entry.name]), joined([to, entry.name])];
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

/** Removes the links of an unpacked folder that would go through a link of the target, which can lead out of it. */
async function removeForeign(
  root: Buffer,
  target: Buffer,
  { links, removed }: Found,
  signal: AbortSignal,
): Promise<void> {
  const foreign: Buffer[] = [];
  for (const link of links) {
    signal.throwIfAborted();
    // Of a path that the system cannot follow, nobody knows where it leads.
    if (await meetsForeign(root, target, link).catch(() => true)) {
      foreign.push(link);
    }
  }
  for (const link of foreign) {
    await rm(joined([root, link]));
    removed.push(link);
  }
}

/** Returns whether a path in the unpacked folder, which moves into the target, would go through a link of the target. */
async function meetsForeign(root: Buffer, target: Buffer, path: Buffer): Promise<boolean> {
  const left = partsOf(path).toReversed();
  let done: Buffer[] = [];
  let links = 0;
  for (let part = left.pop(); part !== undefined; part = left.pop()) {
    if (part.equals(ABOVE)) {
      done.pop();
      continue;
    }
    const next = [...done, part];
    const own = await undefinedIf(isNothing, lstat(joined([root, ...next])));
    const there = own ?? (await undefinedIf(isNothing, lstat(joined([target, ...next]))));
    if (there?.isSymbolicLink() !== true) {
      done = next;
      continue;
    }
    links += 1;
    if (own === undefined || links > LINKS) {
      return true;
    }
    left.push(...partsOf(await readLink(joined([root, ...next]))).toReversed());
  }
  return false;
}

const isNothing = hasCode('ENOENT', 'ENOTDIR');

function tellRemoved(removed: readonly Buffer[], target: string, tell: (line: string) => void): void {
  for (const path of removed.slice(0, NAMED_ENTRIES)) {
    tell(`${printable(join(target, path.toString()))} stays in the guest\n`);
  }
  if (removed.length > NAMED_ENTRIES) {
    tell(`${removed.length - NAMED_ENTRIES} more entries of ${printable(target)} stay in the guest\n`);
  }
}

/**
 * Removes a folder of which nothing is sure. Programs do this, because its paths can be longer than those that the system takes. A folder
 * without the rights of its owner could not be emptied.
 */
async function removeFolder(folder: string): Promise<void> {
  const limit = { timeoutMilliseconds: REMOVAL_MILLISECONDS };
  // If this fails, so does the removal, whose error is told.
  await run('chmod', ['-R', 'u+rwx', '--', folder], limit).catch(() => undefined);
  await run('rm', ['-rf', '--', folder], limit);
}

async function readLink(path: Buffer): Promise<Buffer> {
  return await readlink(path, { encoding: 'buffer' });
}

function joined(parts: readonly Buffer[]): Buffer {
  return Buffer.concat(parts.flatMap((part, at) => (at === 0 ? [part] : [SLASH, part])));
}

/** Returns the parts of a path that name something. */
function partsOf(path: Buffer): Buffer[] {
  return path
    .toString('latin1')
    .split('/')
    .map((part) => Buffer.from(part, 'latin1'))
    .filter((part) => part.length > 0 && !part.equals(HERE));
}
