/**
 * Images that are files of the administrator below a configured folder. The agent does not copy these files, because a copy would take time
 * and disk space. Clones use such a file directly as their read-only base. As with any base image, nobody may write to the file while
 * clones use it. The digest of a file is computed at its first use. It is computed again if the file's device, inode, size or modification
 * time has changed.
 */
import { readFile, realpath, stat } from 'node:fs/promises';
import { isAbsolute, join, relative } from 'node:path';
import { LRUCache } from 'lru-cache';
import * as z from 'zod';
import { parseDocument } from '../../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { codeOf, isMissing, isOfSystem, undefinedIf } from '../../../base/errors.ts';
import { writeWhole } from '../../../base/files.ts';
import { SingleFlight } from '../../../base/singleflight.ts';
import { fileDigest } from '../../disks/diskio.ts';
import type { RunAs } from '../../../base/exec.ts';
import { requireAnswer } from './fileserver.ts';
import type { Catalog, Stored } from '../local/catalog.ts';
import type { ImageRequest } from '../local/importing.ts';
import { inspectImage } from '../local/inspect.ts';
import { newMetadata, sharedId } from '../local/layout.ts';

/** Largest number of files whose digests are remembered. The digest of any other file is computed again when it is needed. */
const DIGESTS_LIMIT = 256;

export interface FileRequest extends ImageRequest {
  path: string;
  /** Folders that can contain the file, at any depth. */
  roots: readonly string[];
  /** Digest that the file must have. If undefined, the file can have any content. */
  sha256: string | undefined;
}

export class FileSource {
  readonly #catalog: Catalog;
  readonly #file: string;
  readonly #reader: RunAs | undefined;
  readonly #flights = new SingleFlight<string>();
  /** Digests of files. The key is the text that {@link fileIdentity} returns. */
  readonly #digests = new LRUCache<string, string>({ max: DIGESTS_LIMIT });

  /** `folder` is the folder of the store. If the agent runs as root, programs read the files as the user `reader`. */
  constructor(catalog: Catalog, folder: string, reader: RunAs | undefined) {
    this.#catalog = catalog;
    this.#reader = reader;
    this.#file = join(folder, 'shared.json');
  }

  async load(): Promise<void> {
    const text = await undefinedIf(isOfSystem, readFile(this.#file, 'utf8'));
    // A missing or damaged file does no harm, because the digests are then computed again.
    const { data = [] } = z.array(z.tuple([z.string(), z.string()])).safeParse(parseDocument(text));
    for (const [identity, digest] of data) {
      this.#digests.set(identity, digest);
    }
  }

  async ensure(request: FileRequest): Promise<Stored> {
    const { path, format, architecture } = request;
    const real = await resolveBelowRoots(request);
    const inspected = await inspectImage(real, format, this.#reader);
    const { result: hex } = await this.#flights.join(real, request, (signal) => this.#digest(real, signal));
    if (request.sha256 !== undefined && hex !== request.sha256.toLowerCase()) {
      throw new ReasonedError('DigestMismatch', `${path} has the sha256 ${hex} instead of ${request.sha256}`);
    }
    const digest = `sha256:${hex}`;
    const id = sharedId(real, digest);
    const metadata = newMetadata({ digest, path: real, architecture, sizeBytes: 0, ...inspected });
    return await request.holding(id, async () => this.#catalog.get(id) ?? this.#catalog.add(id, metadata));
  }

  async #digest(real: string, signal: AbortSignal): Promise<string> {
    const identity = await fileIdentity(real);
    const known = this.#digests.get(identity);
    if (known !== undefined) {
      return known;
    }
    const digest = await fileDigest(real, signal);
    if ((await fileIdentity(real)) !== identity) {
      // Perhaps an administrator still copies the file. So the work is tried again, which does not happen after `ImageInvalid`.
      throw new ReasonedError('ImageFetchFailed', `${real} changed while it was read`);
    }
    this.#digests.set(identity, digest);
    await writeWhole(this.#file, JSON.stringify([...this.#digests.rentries()]));
    return digest;
  }
}

/**
 * Returns the real path (absolute and without links) of the requested file below one of the roots. If several roots contain the file, the
 * first root is used.
 *
 * @throws ReasonedError when no root contains the file, a link leads out of its root, or the file server of a root does not answer.
 */
async function resolveBelowRoots({ path, roots, sha256, signal }: FileRequest): Promise<string> {
  if (roots.length === 0) {
    // The source is right, and another host can have the folder. So the reason is not one after which a VM fails at once.
    throw new ReasonedError(
      'ImageFetchFailed',
      'This host has no folder with this file. Set images.sharedRoots in its configuration, or images.storageFolder for files of the image storage',
    );
  }
  for (const root of roots) {
    await requireAnswer(root, signal);
    const real = await realPathOf(join(root, path));
    const realRoot = await realPathOf(root);
    if (real !== undefined && realRoot !== undefined && isBelow(real, realRoot)) {
      return await regularFile(real, path);
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

async function regularFile(real: string, path: string): Promise<string> {
  if (!(await stat(real)).isFile()) {
    throw new ReasonedError('ImageInvalid', `${path} is not a regular file`);
  }
  return real;
}

function isBelow(path: string, root: string): boolean {
  const way = relative(root, path);
  return way !== '' && way !== '..' && !way.startsWith('../') && !isAbsolute(way);
}

async function realPathOf(path: string): Promise<string | undefined> {
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

/** Returns a text that changes when the file is replaced or written to. */
async function fileIdentity(path: string): Promise<string> {
  const { dev, ino, size, mtimeNs } = await stat(path, { bigint: true });
  return `${dev}:${ino}:${size}:${mtimeNs}`;
}
