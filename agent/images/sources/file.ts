/**
 * Images that are files of a folder: of the administrator (a shared root), or of the cluster's own image storage. The agent copies such a
 * file into the host's own store, and computes the sha256 of the bytes that it copies. Machines run from the copy alone, because anybody
 * who can write to the folder could change the file while it is in use. The attributes of a file decide only whether a new copy is made.
 */
import { createHash } from 'node:crypto';
import { type BigIntStats, constants } from 'node:fs';
import { type FileHandle, open, readlink, realpath, stat } from 'node:fs/promises';
import { isAbsolute, join, relative } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { imageMemorySchema } from '../../../api/v1alpha1/task.ts';
import { codeOf, isMissing } from '../../../base/errors.ts';
import { copyHashed, StalledReadError } from '../../disks/sparse.ts';
import { STAT_BLOCK_BYTES } from '../../disks/diskio.ts';
import { askFileServer } from '../../disks/fileserver.ts';
import { memoryIn } from '../layouts/pull.ts';
import {
  DESCRIPTION_LIMITS,
  memoryBeside,
  type StoredMemory,
  storedMemorySchema,
} from '../layouts/storedmemory.ts';
import type { ImageRequest, CatalogEntry, WaitingCaller } from '../local/catalog.ts';
import type { Import, SourceImage, SourceParts } from '../local/importing.ts';
import { type ImageId, sharedId, storedId } from '../local/layout.ts';
import { readDocument } from '../oci/manifests.ts';
import { ProgramError, run } from '../../../base/exec.ts';

/** The place of a file on this host. */
interface FilePlace {
  readonly path: string;
  /** Folders that can contain the file, at any depth. */
  readonly roots: readonly string[];
  /** Digest that the file must have. If undefined, the file can have any content. */
  readonly sha256: string | undefined;
  /** Digest of the file that describes the memory beside the file. If undefined, the image has only a disk. */
  readonly memoryDigest?: string | undefined;
}

/**
 * A regular file below one of the roots. Messages name it by its path below the root, because tenants read them, and must not learn the
 * folders of the host.
 */
interface Found {
  /** Path below the root, as in the request. */
  path: string;
  /** Absolute path without links. */
  real: string;
  stats: BigIntStats;
}

/** The files of an image. */
interface FoundImage {
  disk: Found;
  memory?: FoundMemory;
}

interface FoundMemory {
  described: StoredMemory;
  ram: Found;
  state: Found;
}

/** One requested file of a folder. */
export class FileImage implements SourceImage {
  readonly names: readonly string[];
  readonly #parts: SourceParts;
  readonly #place: FilePlace;
  readonly #request: ImageRequest;

  constructor(parts: SourceParts, place: FilePlace, request: ImageRequest) {
    this.#parts = parts;
    this.#place = { ...place, sha256: place.sha256?.toLowerCase() };
    this.#request = request;
    this.names = request.name === undefined ? [] : [request.name];
  }

  async ensure(): Promise<CatalogEntry> {
    const { sha256, memoryDigest } = this.#place;
    const { signal } = this.#request;
    if (sha256 !== undefined) {
      // The content alone identifies the image, so the storage is not read again for content that this host has.
      return await this.#ensure(storedId(sha256, memoryDigest), async () => ({
        disk: await findBelowRoots(this.#place, signal),
        ...(memoryDigest !== undefined && { memory: await findMemory(this.#place, memoryDigest, signal) }),
      }));
    }
    const disk = await findBelowRoots(this.#place, signal);
    return await this.#ensure(sharedId(disk.real, identityOf(disk.stats)), async () => ({ disk }));
  }

  async #ensure(id: ImageId, find: () => Promise<FoundImage>): Promise<CatalogEntry> {
    const { catalog, holders, importing } = this.#parts;
    return await holders.during(
      this.#request.holder,
      id,
      async () =>
        catalog.get(id) ??
        (await importing.ensure(id, this.#request, async (_signal, onProgress) =>
          this.#plan(id, await find(), onProgress),
        )),
    );
  }

  #plan(id: ImageId, { disk, memory }: FoundImage, onProgress: WaitingCaller['onProgress']): Import {
    const { path, sha256 } = this.#place;
    const files = memory === undefined ? [disk] : [disk, memory.ram, memory.state];
    const bytes = files.reduce((sum, { stats }) => sum + Number(stats.size), 0);
    // Without a pinned digest, only the copied bytes tell the digest, so `run` sets it.
    const metadata: Import['metadata'] = {
      digest: `sha256:${sha256}`,
      architecture: this.#request.architecture,
      ...(memory && { memory: imageMemorySchema.parse(memory.described) }),
    };
    return {
      id,
      what: path,
      roomBytes: files.reduce((sum, { stats }) => sum + neededBytes(stats), 0),
      metadata,
      run: async (target, { signal }) => {
        const options = { signal, onBytes: this.#counted(bytes, onProgress) };
        if (memory !== undefined) {
          const { described, ram, state } = memory;
          const to = memoryIn(target.folder);
          const beside = memoryBeside(path);
          await copyChecked(ram, { path: beside.ram, sha256: described.sha256.ram }, to.ram, options);
          await copyChecked(state, { path: beside.state, sha256: described.sha256.state }, to.state, options);
        }
        metadata.digest = `sha256:${await copyChecked(disk, this.#place, target.disk, options)}`;
      },
    };
  }

  /** Returns a function that counts copied bytes, and tells the caller the progress. `bytes` is the number of all bytes. */
  #counted(bytes: number, onProgress: WaitingCaller['onProgress']): (count: number) => void {
    let done = 0;
    return (count) => {
      done += count;
      this.#parts.metrics.pulledBytes.inc(count);
      onProgress(Math.floor((done * 100) / bytes), done);
    };
  }
}

/** Returns the disk space in bytes that a copy of a file needs. */
function neededBytes({ size, blocks }: BigIntStats): number {
  return Math.min(Number(size), Number(blocks) * STAT_BLOCK_BYTES);
}

/**
 * Copies a file to the path `to`, and returns the sha256 of the copy as hexadecimal digits.
 *
 * @throws ReasonedError `DigestMismatch` when the copy does not have the digest `sha256`, if this is not undefined.
 */
async function copyChecked(
  found: Found,
  { path, sha256 }: Pick<FilePlace, 'path' | 'sha256'>,
  to: string,
  options: Omit<Parameters<typeof copyHashed>[2], 'bytes'>,
): Promise<string> {
  const bytes = Number(found.stats.size);
  return await withFile(found, async (source) => {
    const copied = await copyHashed(source, to, { ...options, bytes });
    const isUnchanged = identityOf(await source.stat({ bigint: true })) === identityOf(found.stats);
    if (copied.sha256 === sha256) {
      return copied.sha256;
    }
    if (!isUnchanged || copied.bytes !== bytes) {
      throw changed(found);
    }
    if (sha256 !== undefined) {
      throw mismatch(path, copied.sha256, sha256);
    }
    return copied.sha256;
  });
}

function mismatch(path: string, found: string, wanted: string): ReasonedError {
  return new ReasonedError('DigestMismatch', `${path} has the sha256 ${found} instead of ${wanted}`);
}

/**
 * Finds the memory beside a file of the image storage. `digest` is the sha256 of the file that describes the memory.
 *
 * @throws ReasonedError when one of the files is missing, has another digest, or cannot be the memory of an image.
 */
async function findMemory(
  { path, roots, sha256 }: FilePlace,
  digest: string,
  signal: AbortSignal,
): Promise<FoundMemory> {
  const beside = memoryBeside(path);
  const find = async (path: string): Promise<Found> => await findBelowRoots({ path, roots, sha256 }, signal);
  const text = await withFile(await find(beside.description), async (file) => {
    const bytes = Buffer.alloc(DESCRIPTION_LIMITS.bytes);
    return bytes.subarray(0, (await file.read(bytes, 0, bytes.length, 0)).bytesRead);
  });
  const found = createHash('sha256').update(text).digest('hex');
  if (found !== digest) {
    throw mismatch(beside.description, found, digest);
  }
  const described = readDocument(storedMemorySchema, text, DESCRIPTION_LIMITS, beside.description);
  const [ram, state] = [await find(beside.ram), await find(beside.state)];
  requireSize(beside.ram, ram, described.memoryBytes);
  requireSize(beside.state, state, described.stateBytes);
  return { described, ram, state };
}

/** The size is checked before the copy, because a wrong file can be much larger than the space for the image. */
function requireSize(path: string, { stats }: Found, bytes: number): void {
  if (Number(stats.size) !== bytes) {
    throw new ReasonedError('DigestMismatch', `${path} has ${stats.size} bytes instead of ${bytes}`);
  }
}

/**
 * Opens the found file, and passes its handle to `work`.
 *
 * @throws ReasonedError `ImageFetchFailed` when another file has taken its place, or its file server does not answer.
 */
async function withFile<T>(found: Found, work: (file: FileHandle) => Promise<T>): Promise<T> {
  const { real } = found;
  // O_NONBLOCK: the open of a pipe that has taken the place of the file would wait for a writer.
  const file = await openOrMissing(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  if (file === undefined) {
    throw changed(found);
  }
  try {
    await requireSame(file, found);
    const result = await work(file);
    await file.close();
    return result;
  } catch (error) {
    const closing = file.close();
    if (!(error instanceof StalledReadError)) {
      await closing;
      throw error;
    }
    // The handle closes only after its stalled read, which can take for ever. The next request first asks the file server.
    closing.catch(() => undefined);
    const what = `${found.path} does not answer: check its file server`;
    throw new ReasonedError('ImageFetchFailed', what, { cause: error });
  }
}

/** @throws ReasonedError when the opened file is not the file that was found, for example because a folder of its path became a link. */
async function requireSame(file: FileHandle, found: Found): Promise<void> {
  const isSame = identityOf(await file.stat({ bigint: true })) === identityOf(found.stats);
  if (
    !isSame ||
    (process.platform === 'linux' && (await readlink(`/proc/self/fd/${file.fd}`)) !== found.real)
  ) {
    throw changed(found);
  }
}

async function openOrMissing(path: string, flags: number): Promise<FileHandle | undefined> {
  try {
    return await open(path, flags);
  } catch (error) {
    if (isMissing(error) || codeOf(error) === 'ELOOP' || codeOf(error) === 'ENOTDIR') {
      return undefined;
    }
    throw error;
  }
}

/**
 * Returns the error for a file that differs from the file that was found. Perhaps an administrator still copies the file. So the work is
 * tried again, which does not happen after `ImageInvalid`.
 */
function changed({ path }: Found): ReasonedError {
  return new ReasonedError('ImageFetchFailed', `${path} changed while it was read`);
}

/**
 * Returns the requested file below one of the roots. If several roots contain the file, the first root is used.
 *
 * @throws ReasonedError when no root contains the file, a link leads out of its root, or the file server of a root does not answer.
 */
async function findBelowRoots({ path, roots, sha256 }: FilePlace, signal: AbortSignal): Promise<Found> {
  if (roots.length === 0) {
    // The source is right, and another host can have the folder. So the reason is not one after which a VM fails at once.
    throw new ReasonedError(
      'ImageFetchFailed',
      'This host has no folder with this file. Set images.sharedRoots in its configuration, or images.storageFolder for files of the image storage',
    );
  }
  for (const root of roots) {
    await requireAnswer(root, signal);
    const real = await readRealPath(join(root, path));
    const realRoot = await readRealPath(root);
    if (real !== undefined && realRoot !== undefined && isBelow(real, realRoot)) {
      return { path, real, stats: await regularFile(real, path) };
    }
  }
  // Only the log of the agent has the cause.
  const cause = new Error(`looked below ${roots.join(' and ')}`);
  if (sha256 !== undefined) {
    // Only files of the image storage have a digest. The operator names only files that the storage has, so this host is at fault.
    throw new ReasonedError(
      'ImageFetchFailed',
      `${path} is not in the image storage of this host: check that the folder is mounted`,
      { cause },
    );
  }
  // The message is the same for a missing file and for a file outside the roots. Thus no user learns whether a file outside the roots
  // exists.
  throw new ReasonedError('ImageNotFound', `${path} is not a file below a shared folder of this host`, {
    cause,
  });
}

async function regularFile(real: string, path: string): Promise<BigIntStats> {
  const stats = await stat(real, { bigint: true });
  if (!stats.isFile()) {
    throw new ReasonedError('ImageInvalid', `${path} is not a regular file`);
  }
  return stats;
}

function isBelow(path: string, root: string): boolean {
  const way = relative(root, path);
  return way !== '' && way !== '..' && !way.startsWith('../') && !isAbsolute(way);
}

async function readRealPath(path: string): Promise<string | undefined> {
  try {
    return await realpath(path);
  } catch (error) {
    const code = codeOf(error);
    if (isMissing(error) || code === 'ENOTDIR' || code === 'ELOOP' || code === 'EACCES') {
      return undefined;
    }
    throw error;
  }
}

/** Returns a text that changes when an honest user replaces the file or writes to it. It says nothing about the content. */
function identityOf({ dev, ino, size, mtimeNs, ctimeNs }: BigIntStats): string {
  return `${dev}:${ino}:${size}:${mtimeNs}:${ctimeNs}`;
}

/**
 * Time limit in milliseconds for the answer. The limit is long, because a file server that moves to another machine needs more than a minute.
 */
const ANSWER_MILLISECONDS = 120_000;

/**
 * Checks that the file server of a folder answers. Call this function before work with files in a shared folder. While the server is down, a
 * call of Node.js for such a file never returns. A few of these calls would block all work of the agent with files. The agent can end a
 * program instead, so a program asks the server.
 *
 * @throws ReasonedError `ImageFetchFailed` when the server does not answer in time; the signal's reason when the signal aborts.
 */
export async function requireAnswer(folder: string, signal: AbortSignal): Promise<void> {
  const limits = { timeoutMilliseconds: ANSWER_MILLISECONDS, signal };
  try {
    const { program, parameters } = askFileServer(folder);
    await run(program, parameters, limits);
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof ProgramError && error.exceeded === 'time') {
      throw new ReasonedError(
        'ImageFetchFailed',
        'A folder with images of this host does not answer: check its file server',
        { cause: new Error(`${folder} does not answer`) },
      );
    }
    // The caller's own work shows all other faults, for example a missing folder.
  }
}
