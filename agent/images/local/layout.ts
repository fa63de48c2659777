/**
 * The files below `<data directory>/images`:
 *
 * - `sha256/<hex>/` an image of a registry, by the digest of its manifest; `file/<hex>/` one fetched over http, by the sha256 of
 *   what was fetched: in each `disk`, and `image.json`, without which it is no image; `chunks.json` where its layout has one.
 * - `shared/<hex>/` the `image.json` of a file that is used where it lies, by its path and content.
 * - `partial/<hex>/` what is being fetched; kept over restarts, so that it can be taken up again.
 * - `trash/` what is on its way out.
 */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, renameSync } from 'node:fs';
import { chmod, chown, mkdir, readdir, readFile, rm, stat, utimes } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import * as z from 'zod';
import { listFolders, sync, writeWhole } from '../../../base/files.ts';
import { folderBytes } from '../../disks/diskio.ts';
import { isMissing } from '../../../base/errors.ts';

/** The digest of a manifest and that of a file are never taken for each other: who knows the one need not be let to the other. */
const KINDS = ['sha256', 'file', 'shared'] as const;
type Kind = (typeof KINDS)[number];
/** `KIND/<hex>`: names an image within its store. */
export type ImageId = `${Kind}/${string}`;

const DISK = 'disk';
const METADATA = 'image.json';
/** The files of a finished image; anything else in its folder is left from its import. */
const KEPT = new Set([DISK, METADATA, 'chunks.json', 'nvram.bin']);
/** Disks of strangers: hypervisors open them before they give up their rights, other programs are given them open. */
const FOLDER_MODE = 0o700;
const DISK_MODES = { unfinished: 0o640, finished: 0o440 };

const metadataSchema = z.object({
  version: z.literal(1),
  /** Digest of the manifest, or of the file. */
  digest: z.string(),
  /** Path of a file that is used where it lies. */
  path: z.string().optional(),
  format: z.enum(['qcow2', 'raw']),
  virtualSizeBytes: z.number(),
  /** Room that it takes here. */
  sizeBytes: z.number(),
  /** Guests' architecture that it was asked for with. */
  architecture: z.enum(['amd64', 'arm64']),
  /** Names by which it is found: normalised references, and names of Image objects. */
  names: z.array(z.string()),
  /** Repositories that it was fetched from, or could have been; `open`: without credentials, when that was last asked. */
  repositories: z.array(z.object({ name: z.string(), open: z.boolean(), digests: z.array(z.string()) })),
  /** SHA-256 of each address that a file fetched over http came from. An earlier agent wrote none. */
  urls: z.array(z.string()).default([]),
  /** Cache entries that hold it. */
  entries: z.array(z.string()),
});
export type Metadata = z.infer<typeof metadataSchema>;

interface Loaded {
  id: ImageId;
  metadata: Metadata;
  usedAt: number;
}

export function manifestId(digest: string): ImageId {
  return `sha256/${digest.replace(/^sha256:/, '')}`;
}

export function fileId(sha256: string): ImageId {
  return `file/${sha256}`;
}

export function sharedId(path: string, digest: string): ImageId {
  return `shared/${hash(`${digest} ${path}`)}`;
}

function hash(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

export class Layout {
  readonly root: string;
  readonly #readers: number | undefined;

  /** `readers`: the group that may read images, where the agent is root. */
  constructor(dataDirectory: string, readers?: number) {
    this.root = join(dataDirectory, 'images');
    this.#readers = readers;
  }

  /** Makes the folders and empties the trash. */
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

  /** The folder for a fetch from one place; the finished disk goes to `disk` in it. */
  partial(key: string): { folder: string; disk: string } {
    const folder = join(this.root, 'partial', hash(key));
    return { folder, disk: join(folder, DISK) };
  }

  /**
   * All images, with the time of their last use in milliseconds since the epoch. What is half is removed; what cannot be
   * read is told, and left: a machine may run from it.
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
      if (!(error instanceof SyntaxError || error instanceof z.ZodError)) {
        throw error;
      }
      broken({ err: error, folder });
      return undefined;
    }
  }

  async save(id: ImageId, metadata: Metadata): Promise<void> {
    // Others have their folder from the fetch.
    if (metadata.path !== undefined) {
      await mkdir(this.folder(id), { recursive: true, mode: FOLDER_MODE });
    }
    await writeWhole(join(this.folder(id), METADATA), JSON.stringify(metadata));
  }

  /** The time of the last use is that of the file: it may be lost with the host's power. */
  async touch(id: ImageId, time: Date): Promise<void> {
    try {
      await utimes(join(this.folder(id), METADATA), time, time);
    } catch (error) {
      if (!isMissing(error)) {
        throw error;
      }
    }
  }

  /** Lets the programs read it that inspect it. A fetch that is cut off here is taken up later. */
  async letRead(disk: string): Promise<void> {
    await chmod(disk, DISK_MODES.unfinished);
    if (this.#readers !== undefined) {
      await chown(disk, 0, this.#readers);
    }
  }

  /** A fetch whose disk is whole becomes an image; all but its place. */
  async finish(partial: string, metadata: Metadata): Promise<void> {
    await chmod(join(partial, DISK), DISK_MODES.finished);
    await sync(join(partial, DISK));
    await writeWhole(join(partial, METADATA), JSON.stringify(metadata));
  }

  /** Gives a finished fetch its place, before anything else can happen. */
  place(partial: string, id: ImageId): void {
    renameSync(partial, this.folder(id));
  }

  /** After {@link place}: for good, and without the traces of its making. */
  async tidy(id: ImageId): Promise<void> {
    await sync(dirname(this.folder(id)));
    await prune(this.folder(id));
  }

  /** The metadata of a fetch that was finished but not yet given its place. */
  async finished(partial: string): Promise<Metadata | undefined> {
    return await readMetadata(partial);
  }

  /** Out of its place before anything else can happen; its room is free once this resolves. */
  async discard(id: ImageId): Promise<void> {
    const trash = join(this.root, 'trash', randomUUID());
    // A file that is used where it lies has its folder only once its use is written down.
    if (existsSync(this.folder(id))) {
      renameSync(this.folder(id), trash);
    }
    await rm(trash, { recursive: true, force: true });
  }

  async emptyTrash(): Promise<void> {
    await rm(join(this.root, 'trash'), { recursive: true, force: true });
  }

  /** Fetches that were begun: their folders, the room they take, and when they were last worked on (milliseconds since the epoch). */
  async partials(): Promise<{ folder: string; sizeBytes: number; usedAt: number }[]> {
    const root = join(this.root, 'partial');
    const found: { folder: string; sizeBytes: number; usedAt: number }[] = [];
    for (const name of await listFolders(root)) {
      const folder = join(root, name);
      const usedAt = await changedAt(folder);
      if (usedAt !== undefined) {
        found.push({ folder, sizeBytes: await folderBytes(folder), usedAt });
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

/** In milliseconds since the epoch; undefined for a file that has gone. */
async function changedAt(path: string): Promise<number | undefined> {
  try {
    return (await stat(path)).mtimeMs;
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}

async function readMetadata(folder: string): Promise<Metadata | undefined> {
  try {
    return metadataSchema.parse(JSON.parse(await readFile(join(folder, METADATA), 'utf8')));
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}

async function prune(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    if (!KEPT.has(name)) {
      await rm(join(folder, name), { recursive: true });
    }
  }
}
