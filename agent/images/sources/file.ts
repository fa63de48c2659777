/**
 * Images that are files of a folder: of the administrator (a shared root), or of the cluster's own image storage. The agent copies such a
 * file into the host's own store, and computes the sha256 of the bytes that it copies. Machines run from the copy alone, because anybody
 * who can write to the folder could change the file while it is in use. The attributes of a file decide only whether a new copy is made.
 */
import { type BigIntStats, constants } from 'node:fs';
import { type FileHandle, open, readlink, realpath, stat } from 'node:fs/promises';
import { isAbsolute, join, relative } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { codeOf, isMissing } from '../../../base/errors.ts';
import { copyHashed, StalledReadError } from '../../disks/sparse.ts';
import { STAT_BLOCK_BYTES } from '../../disks/diskio.ts';
import type { ImageRequest, CatalogEntry, WaitingCaller } from '../local/catalog.ts';
import type { Import, SourceImage, SourceParts } from '../local/importing.ts';
import { type ImageId, sharedId, storedId } from '../local/layout.ts';
import type { Watched } from '../local/space.ts';
import { ProgramError, run } from '../../../base/exec.ts';

/** The place of a file on this host. */
interface FilePlace {
  readonly path: string;
  /** Folders that can contain the file, at any depth. */
  readonly roots: readonly string[];
  /** Digest that the file must have. If undefined, the file can have any content. */
  readonly sha256: string | undefined;
}

/** A regular file below one of the roots. */
interface Found {
  /** Absolute path without links. */
  real: string;
  stats: BigIntStats;
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
    const { sha256 } = this.#place;
    const find = async (): Promise<Found> => await findBelowRoots(this.#place, this.#request.signal);
    if (sha256 !== undefined) {
      // The content alone identifies the image, so the storage is not read again for content that this host has.
      return await this.#ensure(storedId(sha256), find);
    }
    const found = await find();
    return await this.#ensure(sharedId(found.real, identityOf(found.stats)), async () => found);
  }

  async #ensure(id: ImageId, find: () => Promise<Found>): Promise<CatalogEntry> {
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

  #plan(id: ImageId, found: Found, onProgress: WaitingCaller['onProgress']): Import {
    const { path, sha256 } = this.#place;
    const { size, blocks } = found.stats;
    const allocated = Number(blocks) * STAT_BLOCK_BYTES;
    // Without a pinned digest, only the copied bytes tell the digest, so `run` sets it.
    const metadata = { digest: `sha256:${sha256}`, architecture: this.#request.architecture };
    return {
      id,
      what: path,
      roomBytes: Math.min(Number(size), allocated),
      metadata,
      run: async ({ disk }, watched) => {
        metadata.digest = `sha256:${await this.#copy(found, disk, { ...watched, onProgress })}`;
      },
    };
  }

  /** Copies the file, and returns the sha256 of the copy as hexadecimal digits. */
  async #copy(found: Found, disk: string, { signal, onProgress }: Watched & WaitingCaller): Promise<string> {
    const { path, sha256 } = this.#place;
    const bytes = Number(found.stats.size);
    let done = 0;
    const onBytes = (count: number): void => {
      done += count;
      this.#parts.metrics.pulledBytes.inc(count);
      onProgress(Math.floor((done * 100) / bytes), done);
    };
    return await withFile(found, async (source) => {
      const copied = await copyHashed(source, disk, { bytes, signal, onBytes });
      const isUnchanged = identityOf(await source.stat({ bigint: true })) === identityOf(found.stats);
      if (copied.sha256 === sha256) {
        return copied.sha256;
      }
      if (!isUnchanged || copied.bytes !== bytes) {
        throw changed(found);
      }
      if (sha256 !== undefined) {
        throw new ReasonedError(
          'DigestMismatch',
          `${path} has the sha256 ${copied.sha256} instead of ${sha256}`,
        );
      }
      return copied.sha256;
    });
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
    const what = `${real} does not answer: check its file server`;
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
function changed({ real }: Found): ReasonedError {
  return new ReasonedError('ImageFetchFailed', `${real} changed while it was read`);
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
      return { real, stats: await regularFile(real, path) };
    }
  }
  const folders = roots.join(' or ');
  if (sha256 !== undefined) {
    // Only files of the image storage have a digest. The operator names only files that the storage has, so this host is at fault.
    throw new ReasonedError(
      'ImageFetchFailed',
      `${path} is not in the image storage ${folders} of this host: check that the folder is mounted`,
    );
  }
  // The message is the same for a missing file and for a file outside the roots. Thus no user learns whether a file outside the roots
  // exists.
  throw new ReasonedError('ImageNotFound', `${path} is not a file below ${folders}`);
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
    // With `--file-system`, the kernel asks the server, and does not answer from its cache.
    await run('stat', ['--file-system', '--', folder], limits);
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof ProgramError && error.exceeded === 'time') {
      throw new ReasonedError(
        'ImageFetchFailed',
        `The folder ${folder} does not answer: check its file server`,
      );
    }
    // The caller's own work shows all other faults, for example a missing folder.
  }
}
