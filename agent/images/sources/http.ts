/**
 * Images over http. What is here serves those who name an address that has given it, by its digest. For another address it is
 * fetched again: digests stand in the statuses of Nodes, and knowing one must not bring out somebody else's image.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { describeUrl } from '../../../api/v1alpha1/describe.ts';
import type { Addresses } from '../oci/addresses.ts';
import type { Catalog, Stored } from '../local/catalog.ts';
import { download } from './download.ts';
import { SingleFlight } from '../../../base/singleflight.ts';
import type { PullTarget } from '../layouts/pull.ts';
import { fileId } from '../local/layout.ts';
import type { Making } from '../local/importing.ts';
import type { ImageMetrics } from '../local/metrics.ts';
import type { Watched } from '../local/space.ts';
import { ImageError, type EnsureOptions, type ImageFormat } from '../local/types.ts';
import { compressionOf, digHoles, unpack, unpackedLimit } from '../../disks/unpack.ts';

const SHA256 = /^[0-9a-f]{64}$/;
/** Of one image: the addresses that gave it last; from others it is fetched again. */
const URLS_LIMIT = 64;

export interface HttpRequest extends Pick<EnsureOptions, 'signal' | 'onProgress'> {
  url: string;
  /** Of the file as it comes. */
  sha256: string;
  architecture: 'amd64' | 'arm64';
  format: ImageFormat;
  /** Does `work` while the asker holds the image. */
  holding: (id: Stored['id'], work: () => Promise<Stored>) => Promise<Stored>;
}

export interface HttpSourceParts {
  catalog: Catalog;
  making: Making;
  metrics: ImageMetrics;
  addresses: Addresses;
  logger: Logger;
}

export class HttpSource {
  readonly #parts: HttpSourceParts;
  readonly #flights = new SingleFlight<Stored>();

  constructor(parts: HttpSourceParts) {
    this.#parts = parts;
  }

  async ensure(request: HttpRequest): Promise<Stored> {
    const digest = request.sha256.toLowerCase();
    if (!SHA256.test(digest)) {
      throw new ImageError('ImageInvalid', `${request.sha256} is not a sha256`);
    }
    const id = fileId(digest);
    const address = hashOf(request.url);
    return await request.holding(id, async () => {
      const present = this.#parts.catalog.get(id);
      if (present?.metadata.urls.includes(address) === true) {
        return present;
      }
      const stored = await this.#fetch(`${digest} ${request.url}`, { ...request, sha256: digest });
      await this.#note(stored, address);
      return stored;
    });
  }

  async #note(stored: Stored, address: string): Promise<void> {
    const { metadata } = stored;
    // Several may have waited for the same fetch.
    if (metadata.urls.includes(address)) {
      return;
    }
    metadata.urls = [...metadata.urls, address].slice(-URLS_LIMIT);
    await this.#parts.catalog.save(stored);
  }

  async #fetch(key: string, request: HttpRequest): Promise<Stored> {
    const { sha256, architecture, format } = request;
    const { result } = await this.#flights.join(key, request, async (signal, onProgress) => {
      const job = {
        id: fileId(sha256),
        key,
        what: describeUrl(request.url),
        // Told by the server's answer.
        roomBytes: 0,
        format,
        metadata: { digest: `sha256:${sha256}`, architecture, names: [], repositories: [] },
      };
      return await this.#parts.making.make(
        { ...job, run: (target, watched) => this.#run(request, target, { ...watched, onProgress }) },
        signal,
      );
    });
    return result;
  }

  async #run(
    { url, sha256 }: HttpRequest,
    target: PullTarget,
    { signal, need, onProgress }: Watched & Pick<HttpRequest, 'onProgress'>,
  ): Promise<void> {
    const { addresses, metrics, logger } = this.#parts;
    // Of an earlier attempt: it has its name only when it is whole.
    if (existsSync(target.disk)) {
      return;
    }
    const fetched = join(target.folder, 'download');
    await download(url, sha256, fetched, { signal, onProgress, onTotal: need, addresses });
    const { size } = await stat(fetched);
    metrics.pulledBytes.inc(size);
    const compression = await compressionOf(fetched);
    if (compression !== undefined) {
      const unpacked = join(target.folder, 'unpacked');
      // How large that gets nobody says: the disk is watched.
      await unpack(compression, { from: fetched, to: unpacked, limitBytes: unpackedLimit(size) }, signal);
      await rename(unpacked, target.disk);
      await rm(fetched);
      return;
    }
    try {
      await digHoles(fetched);
    } catch (error) {
      // It takes more room than it might, and is as good.
      logger.debug({ err: error, url: describeUrl(url) }, 'zeros of an image not made into holes');
    }
    await rename(fetched, target.disk);
  }
}

/** Addresses may hold credentials, so that they are not written down. */
function hashOf(url: string): string {
  return createHash('sha256').update(url).digest('hex');
}
