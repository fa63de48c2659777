/**
 * The images of one host, below `<data directory>/images`:
 * `sha256/<digest>` what was fetched, with `<digest>.json` beside it; `partial/` what is being fetched; `shared.json`
 * the digests of shared files.
 *
 * A shared file is used where it lies, as the read-only base of its clones: that takes no time and no space. It must
 * not be written to afterwards, as with any base image. Its digest is computed once, at its first use, and again
 * when device, inode, size or time of change differ.
 */

import { randomUUID } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { isMissing } from '../machines/folder.ts';
import { download } from './fetch.ts';
import { SharedWork } from './flight.ts';
import { inspectImage } from './inspect.ts';
import { fileDigest, fileIdentity, resolveBelowRoots } from './sharedfile.ts';
import {
  type BaseImage,
  type BaseImageSource,
  type EnsureOptions,
  ImageError,
  type ImageFormat,
  type ImageStore,
} from './store.ts';

export interface HostImageStoreOptions {
  dataDirectory: string;
  /** Folders below which files may be used as images. */
  sharedRoots: readonly string[];
  /** Fetch also from loopback and link-local addresses. */
  allowLoopbackHttp: boolean;
}

/** Between being asked for and being named by a machine's record an image must not be collected. */
const COLLECT_GRACE_MILLISECONDS = 600_000;
const SHA256 = /^[0-9a-f]{64}$/;
/** The oldest digests of shared files are forgotten, and computed again when needed. */
const SHARED_LIMIT = 256;

const metadataSchema = z.object({
  names: z.array(z.string()),
  sizeBytes: z.number(),
  format: z.enum(['qcow2', 'raw']),
  virtualSizeBytes: z.number(),
});
type Metadata = z.infer<typeof metadataSchema>;

type Progress = (percent: number) => void;

export class HostImageStore implements ImageStore {
  readonly #folder: string;
  readonly #options: HostImageStoreOptions;
  readonly #known = new Map<string, Metadata>();
  readonly #flights = new Map<string, SharedWork<BaseImage>>();
  readonly #askedAt = new Map<string, number>();
  #shared = new Map<string, string>();

  private constructor(options: HostImageStoreOptions) {
    this.#folder = join(options.dataDirectory, 'images');
    this.#options = options;
  }

  /** Finds what is there; what an earlier agent did not finish is removed. */
  static async open(options: HostImageStoreOptions): Promise<HostImageStore> {
    const store = new HostImageStore(options);
    await store.#load();
    return store;
  }

  async ensure(source: BaseImageSource, options: EnsureOptions): Promise<BaseImage> {
    const format = options.format ?? 'Auto';
    switch (source.type) {
      case 'sharedFile':
        return await this.#once(`file ${format} ${source.path}`, options, async (signal) => {
          return await this.#sharedFile(source.path, format, signal);
        });
      case 'http':
        return await this.#once(`http ${format} ${source.sha256}`, options, async (signal, onProgress) => {
          return await this.#http(source, format, { signal, onProgress });
        });
      case 'registry':
        throw new ImageError(
          'ImageSourceUnsupported',
          `images of registries cannot be fetched by this agent yet (${source.reference})`,
        );
      default:
        throw new ImageError('ImageSourceUnsupported', source.description);
    }
  }

  images(): { names: string[]; sizeBytes: number }[] {
    return [...this.#known].map(([digest, { names, sizeBytes }]) => ({
      names: [...names, `sha256:${digest}`],
      sizeBytes,
    }));
  }

  async collect(inUse: Set<string>): Promise<void> {
    for (const digest of this.#known.keys()) {
      const path = this.#pathOf(digest);
      const asked = this.#askedAt.get(path) ?? 0;
      if (inUse.has(path) || Date.now() - asked < COLLECT_GRACE_MILLISECONDS) continue;
      this.#known.delete(digest);
      // The description first: a file without one is not in the store.
      await rm(`${path}.json`, { force: true });
      await rm(path, { force: true });
    }
  }

  async #once(
    key: string,
    options: EnsureOptions,
    work: (signal: AbortSignal, onProgress: Progress) => Promise<BaseImage>,
  ): Promise<BaseImage> {
    let flight = this.#flights.get(key);
    if (flight === undefined) {
      flight = new SharedWork(async (signal, onProgress) => {
        try {
          return await work(signal, onProgress);
        } finally {
          this.#flights.delete(key);
        }
      });
      this.#flights.set(key, flight);
    }
    const image = await flight.wait(options.signal, options.onProgress);
    this.#askedAt.set(image.path, Date.now());
    return image;
  }

  async #sharedFile(path: string, format: ImageFormat, signal: AbortSignal): Promise<BaseImage> {
    const real = await resolveBelowRoots(path, this.#options.sharedRoots);
    const inspected = await inspectImage(real, format);
    const identity = await fileIdentity(real);
    let digest = this.#shared.get(identity);
    if (digest === undefined) {
      digest = await fileDigest(real, signal);
      if ((await fileIdentity(real)) !== identity) {
        throw new ImageError('ImageInvalid', `${path} was written to while it was read`);
      }
      this.#shared.set(identity, digest);
      await this.#saveShared();
    }
    return { path: real, digest: `sha256:${digest}`, ...inspected };
  }

  async #http(
    source: { url: string; sha256: string },
    format: ImageFormat,
    options: EnsureOptions,
  ): Promise<BaseImage> {
    const digest = source.sha256.toLowerCase();
    if (!SHA256.test(digest)) throw new ImageError('ImageInvalid', `${source.sha256} is not a sha256`);
    const path = this.#pathOf(digest);
    const known = this.#known.get(digest);
    if (known !== undefined) return await this.#fromStore(digest, known, format);
    const partial = join(this.#folder, 'partial', randomUUID());
    try {
      const { allowLoopbackHttp: allowLoopback } = this.#options;
      await download(source.url, digest, partial, { ...options, allowLoopback });
      const inspected = await inspectImage(partial, format);
      const { size } = await stat(partial);
      await chmod(partial, 0o444);
      await rename(partial, path);
      const metadata = { names: [source.url], sizeBytes: size, ...inspected };
      await writeAtomically(`${path}.json`, metadata);
      this.#known.set(digest, metadata);
      return { path, digest: `sha256:${digest}`, ...inspected };
    } finally {
      await rm(partial, { force: true });
    }
  }

  /** The same file may be asked for with another word on its format. */
  async #fromStore(digest: string, known: Metadata, format: ImageFormat): Promise<BaseImage> {
    const path = this.#pathOf(digest);
    const inspected = format === 'Auto' ? known : await inspectImage(path, format);
    const { format: found, virtualSizeBytes } = inspected;
    return { path, digest: `sha256:${digest}`, format: found, virtualSizeBytes };
  }

  async #load(): Promise<void> {
    const images = join(this.#folder, 'sha256');
    await rm(join(this.#folder, 'partial'), { recursive: true, force: true });
    await mkdir(join(this.#folder, 'partial'), { recursive: true, mode: 0o700 });
    await mkdir(images, { recursive: true, mode: 0o700 });
    const files = new Set(await readdir(images));
    for (const file of files) {
      if (!SHA256.test(file)) continue;
      if (files.has(`${file}.json`)) {
        const text = await readFile(join(images, `${file}.json`), 'utf8');
        this.#known.set(file, metadataSchema.parse(JSON.parse(text)));
      } else await rm(join(images, file));
    }
    try {
      const text = await readFile(join(this.#folder, 'shared.json'), 'utf8');
      this.#shared = new Map(z.array(z.tuple([z.string(), z.string()])).parse(JSON.parse(text)));
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }

  async #saveShared(): Promise<void> {
    this.#shared = new Map([...this.#shared].slice(-SHARED_LIMIT));
    await writeAtomically(join(this.#folder, 'shared.json'), [...this.#shared]);
  }

  #pathOf(digest: string): string {
    return join(this.#folder, 'sha256', digest);
  }
}

async function writeAtomically(path: string, content: unknown): Promise<void> {
  const temporary = `${path}.${randomUUID()}.tmp`;
  await writeFile(temporary, JSON.stringify(content), { mode: 0o600, flush: true });
  await rename(temporary, path);
}
