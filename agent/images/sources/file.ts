/**
 * Files that are used where they lie, as the read-only base of their clones: that takes no time and no space. They must not be
 * written to afterwards, as with any base image. Their digest is computed once, at the first use, and again when device, inode,
 * size or time of change differ.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { writeWhole } from '../../../base/files.ts';
import { isMissing } from '../../../base/errors.ts';
import type { RunAs } from '../../machines/users.ts';
import type { Catalog, Stored } from '../local/catalog.ts';
import { SingleFlight } from '../../../base/singleflight.ts';
import { inspectImage } from '../local/inspect.ts';
import { sharedId } from '../local/layout.ts';
import { fileDigest, fileIdentity, resolveBelowRoots } from '../sharedfile.ts';
import { ImageError, type EnsureOptions, type ImageFormat } from '../local/types.ts';

/** The oldest digests are forgotten, and computed again when needed. */
const DIGESTS_LIMIT = 256;

export interface FileRequest extends Pick<EnsureOptions, 'signal' | 'onProgress'> {
  path: string;
  /** It lies below one of these folders. */
  roots: readonly string[];
  /** What it has to be; undefined: whatever it is. */
  sha256: string | undefined;
  architecture: 'amd64' | 'arm64';
  format: ImageFormat;
  /** Does `work` while the asker holds the image. */
  holding: (id: Stored['id'], work: () => Promise<Stored>) => Promise<Stored>;
}

export class FileSource {
  readonly #catalog: Catalog;
  readonly #file: string;
  readonly #reader: RunAs | undefined;
  readonly #flights = new SingleFlight<string>();
  #digests = new Map<string, string>();

  /** `folder`: of the store. `reader`: who reads the files, where the agent is root. */
  constructor(catalog: Catalog, folder: string, reader: RunAs | undefined) {
    this.#catalog = catalog;
    this.#reader = reader;
    this.#file = join(folder, 'shared.json');
  }

  async load(): Promise<void> {
    try {
      const text = await readFile(this.#file, 'utf8');
      this.#digests = new Map(z.array(z.tuple([z.string(), z.string()])).parse(JSON.parse(text)));
    } catch (error) {
      if (!isMissing(error)) {
        throw error;
      }
    }
  }

  async ensure(request: FileRequest): Promise<Stored> {
    const { path, roots, format, architecture } = request;
    const real = await resolveBelowRoots(path, roots);
    const inspected = await inspectImage(real, format, this.#reader);
    const { result: hex } = await this.#flights.join(real, request, (signal) => this.#digest(real, signal));
    if (request.sha256 !== undefined && hex !== request.sha256.toLowerCase()) {
      throw new ImageError('DigestMismatch', `${path} has sha256 ${hex}, expected ${request.sha256}`);
    }
    const digest = `sha256:${hex}`;
    const id = sharedId(real, digest);
    return await request.holding(id, async () => {
      const made = { version: 1 as const, digest, path: real, architecture, sizeBytes: 0 };
      return (
        this.#catalog.get(id) ??
        this.#catalog.add(id, { ...made, ...inspected, names: [], repositories: [], urls: [], entries: [] })
      );
    });
  }

  async #digest(real: string, signal: AbortSignal): Promise<string> {
    const identity = await fileIdentity(real);
    const known = this.#digests.get(identity);
    if (known !== undefined) {
      return known;
    }
    const digest = await fileDigest(real, signal);
    if ((await fileIdentity(real)) !== identity) {
      throw new ImageError('ImageInvalid', `${real} was written to while it was read`);
    }
    this.#digests = new Map([...this.#digests, [identity, digest] as const].slice(-DIGESTS_LIMIT));
    await writeWhole(this.#file, JSON.stringify([...this.#digests]));
    return digest;
  }
}
