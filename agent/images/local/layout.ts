/**
 * The files below `<data directory>/images`:
 *
 * - `sha256/<hex>/`: an image of a registry. `<hex>` is the digest of its manifest. If the image is for one namespace alone, `<hex>` is a
 *   hash of this digest and the namespace. The folder contains `disk`, `image.json` and, if the image's layout has chunks, `chunks.json`.
 *   A folder without `image.json` is not an image.
 * - `file/<hex>/`: an image fetched over http. `<hex>` is the sha256 of the downloaded file. The folder contains `disk` and `image.json`.
 * - `stored/<hex>/`: a copy of a file of the cluster's image storage. `<hex>` is a hash of the sha256 of its content.
 * - `shared/<hex>/`: a copy of a file of a shared folder. `<hex>` is a hash of the file's path and attributes.
 * - `partial/<hex>/`: an unfinished fetch. It stays after a restart of the agent, so that it can be resumed.
 * - `trash/`: files that are being removed.
 *
 * An image in the layout of Tart has `config.json` and `nvram.bin` beside `disk`, from which a machine is made.
 * An image with memory has the files `ram` and `state` beside `disk`. They are removed only with their folder, and never written again,
 * because machines map `ram`.
 */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, renameSync } from 'node:fs';
import { chmod, chown, mkdir, readdir, readFile, rm, stat, utimes } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import * as z from 'zod';
import { listFolders, sync, writeWhole } from '../../../base/files.ts';
import { folderBytes, unlessMissing } from '../../disks/diskio.ts';
import { imageMemorySchema } from '../../../api/v1alpha1/task.ts';
import { type MemoryFiles, TART_FILES } from '../../disks/disk.ts';
import { CHUNK_TABLE } from '../layouts/chunks.ts';
import { MEMORY_FILES, memoryIn } from '../layouts/pull.ts';

/**
 * Kinds of images: from a registry (`sha256`), from a web server (`file`), from the folder of the image storage (`stored`), or from a
 * shared folder (`shared`). Images of two kinds never share an id, even if their digests are equal. Otherwise the right to use one image
 * would also give access to the other.
 */
const KINDS = ['sha256', 'file', 'stored', 'shared'] as const;
type Kind = (typeof KINDS)[number];
/** Id of an image within its store: `KIND/<hex>`. */
export type ImageId = `${Kind}/${string}`;

const DISK = 'disk';
const METADATA = 'image.json';
/** Files of a finished image. Other files in its folder are left from its import, and the agent removes them. */
const KEPT = new Set<string>([
  DISK,
  METADATA,
  CHUNK_TABLE,
  ...Object.values(TART_FILES),
  ...Object.values(MEMORY_FILES),
]);
/**
 * File modes that deny other users of the host access to the folders and disks. Programs can nevertheless use the disks: hypervisors open
 * disks before they drop their rights, and other programs receive the disks already open.
 */
const FOLDER_MODE = 0o700;
const DISK_MODES = { unfinished: 0o640, finished: 0o440 };
/** File mode of the memory of a finished image. No program but the hypervisor reads it. */
const MEMORY_MODE = 0o400;

const metadataSchema = z.object({
  version: z.literal(1),
  /** Digest of the manifest if the image is from a registry. Otherwise the digest of the file. */
  digest: z.string(),
  format: z.enum(['qcow2', 'raw']),
  virtualSizeBytes: z.number(),
  /** Bytes of disk space that the image takes in the store. */
  sizeBytes: z.number(),
  /** Architecture of the guests for which the image was requested. */
  architecture: z.enum(['amd64', 'arm64']),
  /** Absent if the image has only a disk, or the host did not fetch the memory. */
  memory: imageMemorySchema.optional(),
  /** Set if the image has memory that the host did not fetch, because it trusts only the memory in the cluster's own image storage. */
  untrustedMemory: z.literal(true).optional(),
  /** Names by which the image is found: normalised references, and names of Image objects. */
  names: z.array(z.string()),
  /**
   * Repositories that have the image and gave a requester access to it. `open` is true if the registry required no credentials at the last
   * check.
   */
  repositories: z.array(z.object({ name: z.string(), open: z.boolean(), digests: z.array(z.string()) })),
  /** SHA-256 of each URL from which the file was fetched. */
  urls: z.array(z.string()),
  /** ImageCacheEntries that need the image on this host. */
  entries: z.array(z.string()),
  /** Namespaces whose Pods asked for the image. The image counts in the share of each of them. */
  tenants: z.array(z.string()),
  /** First namespace that asked for the image on this host, and whether another one has ever asked for it. */
  memoryTenant: z.string().optional(),
  isMemoryShared: z.boolean().optional(),
});
export type ImageMetadata = z.infer<typeof metadataSchema>;

/** Returns the metadata of an image that has neither a name nor an origin yet, and that no cache entry needs. */
export function newMetadata(
  content: Omit<ImageMetadata, 'version' | 'names' | 'repositories' | 'urls' | 'entries' | 'tenants'>,
): ImageMetadata {
  return { version: 1, ...content, names: [], repositories: [], urls: [], entries: [], tenants: [] };
}

interface Loaded {
  id: ImageId;
  metadata: ImageMetadata;
  usedAt: number;
}

/** Returns the id of an image of a registry. If `scope` is not empty, the image has a different id in each scope. */
export function manifestId(digest: string, scope = ''): ImageId {
  return `sha256/${scope === '' ? digest.replace(/^sha256:/, '') : hash(`${scope} ${digest}`)}`;
}

export function fileId(sha256: string): ImageId {
  return `file/${sha256}`;
}

/**
 * Returns the id of a file of the image storage. Hosts of several tenants share it, because the operator names the digest. `memoryDigest` is
 * the digest of its memory. Undefined if only the disk is used.
 */
export function storedId(sha256: string, memoryDigest?: string): ImageId {
  return `stored/${hash(memoryDigest === undefined ? sha256 : `${sha256} ${memoryDigest}`)}`;
}

/** Returns the id of a file of a shared folder. `identity` is a text that changes with the attributes of the file. */
export function sharedId(path: string, identity: string): ImageId {
  return `shared/${hash(`${identity} ${path}`)}`;
}

function hash(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

export class StoreLayout {
  readonly root: string;
  readonly #readers: number | undefined;

  /** `readers` is the id of the group with the right to read images. It is undefined if the agent does not run as root. */
  constructor(dataDirectory: string, readers?: number) {
    this.root = join(dataDirectory, 'images');
    this.#readers = readers;
  }

  /** Creates the folders below `images`, and deletes the content of the trash. */
  async prepare(): Promise<void> {
    await this.emptyTrash();
    for (const name of [...KINDS, 'partial', 'trash']) {
      await mkdir(join(this.root, name), { recursive: true, mode: FOLDER_MODE });
    }
  }

  folder(id: ImageId): string {
    return join(this.root, id);
  }

  disk(id: ImageId): string {
    return join(this.folder(id), DISK);
  }

  memory(id: ImageId): Pick<MemoryFiles, 'ram' | 'state'> {
    return memoryIn(this.folder(id));
  }

  /** Returns the id of the image whose disk would be at this path, or undefined if the store has no disks there. */
  idOf(path: string): ImageId | undefined {
    const id = relative(this.root, dirname(path)) as ImageId;
    const isKnown = KINDS.some((kind) => dirname(id) === kind);
    return isKnown && path === this.disk(id) ? id : undefined;
  }

  /** Returns the folder of the fetch with the key `key`, and the path of the finished disk in this folder. */
  partial(key: string): { folder: string; disk: string } {
    const folder = join(this.root, 'partial', hash(key));
    return { folder, disk: join(folder, DISK) };
  }

  /**
   * Returns all images with the times of their last use in milliseconds since the epoch. Removes incomplete images. If the metadata of an
   * image cannot be read, the function reports this to `broken`. It keeps the files of such an image, because a machine might run from it.
   */
  async load(broken: (problem: object) => void): Promise<Loaded[]> {
    const found: Loaded[] = [];
    for (const kind of KINDS) {
      for (const hex of await listFolders(join(this.root, kind))) {
        const image = await this.#read(`${kind}/${hex}`, broken);
        if (image !== undefined) {
          found.push(image);
        }
      }
    }
    return found;
  }

  async #read(id: ImageId, broken: (problem: object) => void): Promise<Loaded | undefined> {
    const folder = this.folder(id);
    try {
      const metadata = await readMetadata(folder);
      if (metadata === undefined) {
        await rm(folder, { recursive: true });
        return undefined;
      }
      await prune(folder);
      return { id, metadata, usedAt: (await stat(join(folder, METADATA))).mtimeMs };
    } catch (error) {
      // The fault can be in the text or in the disk. In both cases, the agent must start, because it manages all machines of the host.
      broken({ err: error, folder });
      return undefined;
    }
  }

  async save(id: ImageId, metadata: ImageMetadata): Promise<void> {
    await writeWhole(join(this.folder(id), METADATA), JSON.stringify(metadata));
  }

  /** Stores the time of an image's last use as the modification time of `image.json`. This time can be lost when the host loses power. */
  async touch(id: ImageId, time: Date): Promise<void> {
    await unlessMissing(utimes(join(this.folder(id), METADATA), time, time));
  }

  /**
   * Allows the programs that inspect an image to read its disk. The fetch is not yet complete: if the agent stops after this step, the next
   * request resumes the fetch.
   */
  async letRead(disk: string): Promise<void> {
    await chmod(disk, DISK_MODES.unfinished);
    if (this.#readers !== undefined) {
      await chown(disk, 0, this.#readers);
    }
  }

  /** Completes a fetch: makes its disk and memory read-only, syncs them, and writes the metadata. Then {@link place} can move the folder. */
  async finish(partial: string, metadata: ImageMetadata): Promise<void> {
    await chmod(join(partial, DISK), DISK_MODES.finished);
    await sync(join(partial, DISK));
    for (const path of metadata.memory === undefined ? [] : Object.values(memoryIn(partial))) {
      await chmod(path, MEMORY_MODE);
      await sync(path);
    }
    await writeWhole(join(partial, METADATA), JSON.stringify(metadata));
  }

  /**
   * Moves the folder of a finished fetch to the folder of its image. The caller first checks that the store does not have this image yet.
   * The move is synchronous, so that no other code runs between this check and the move.
   */
  place(partial: string, id: ImageId): void {
    renameSync(partial, this.folder(id));
  }

  /** Completes the work of {@link place}: syncs the move to the disk, and removes the files that are left from the import. */
  async tidy(id: ImageId): Promise<void> {
    await sync(dirname(this.folder(id)));
    await prune(this.folder(id));
  }

  /**
   * Returns the metadata of a fetch that is finished, but that {@link place} has not yet moved. Returns undefined for an unfinished fetch.
   */
  async finished(partial: string): Promise<ImageMetadata | undefined> {
    return await readMetadata(partial);
  }

  /**
   * Moves an image to the trash at once (synchronously), and then deletes it. When the promise resolves, the image's disk space is free.
   */
  async discard(id: ImageId): Promise<void> {
    const trash = join(this.root, 'trash', randomUUID());
    // An import also discards an image that the store does not have, because files with damaged metadata can be left of it.
    if (existsSync(this.folder(id))) {
      renameSync(this.folder(id), trash);
    }
    await rm(trash, { recursive: true, force: true });
  }

  async emptyTrash(): Promise<void> {
    await rm(join(this.root, 'trash'), { recursive: true, force: true });
  }

  /**
   * Returns the unfinished fetches: their folders, their sizes in bytes, and the times when their folders last changed (milliseconds since
   * the epoch).
   */
  async partials(): Promise<{ folder: string; sizeBytes: number; usedAt: number }[]> {
    const root = join(this.root, 'partial');
    const found: { folder: string; sizeBytes: number; usedAt: number }[] = [];
    for (const name of await listFolders(root)) {
      const folder = join(root, name);
      const there = await unlessMissing(stat(folder));
      if (there !== undefined) {
        found.push({ folder, sizeBytes: await folderBytes(folder), usedAt: there.mtimeMs });
      }
    }
    return found;
  }

  async beginPartial(folder: string): Promise<void> {
    await mkdir(folder, { recursive: true, mode: FOLDER_MODE });
    const now = new Date();
    await utimes(folder, now, now);
  }

  async dropPartial(folder: string): Promise<void> {
    await rm(folder, { recursive: true, force: true });
  }
}

async function readMetadata(folder: string): Promise<ImageMetadata | undefined> {
  const text = await unlessMissing(readFile(join(folder, METADATA), 'utf8'));
  return text === undefined ? undefined : metadataSchema.parse(JSON.parse(text));
}

async function prune(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    if (!KEPT.has(name)) {
      await rm(join(folder, name), { recursive: true });
    }
  }
}
