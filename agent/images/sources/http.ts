/**
 * Images from web servers. An image on this host is reused only for URLs from which it was fetched before. For another URL, the agent
 * fetches the image again. Otherwise a user who knows only the digest of another user's image could get this image. Such digests are not
 * secret, because the statuses of Nodes show them.
 */
import { createHash } from 'node:crypto';
import { rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { describeUrl } from '../../../api/v1alpha1/describe.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { unlessMissing } from '../../disks/diskio.ts';
import { compressionOf, digHoles, unpack, unpackedLimit } from '../../disks/unpack.ts';
import type { PullTarget } from '../layouts/pull.ts';
import type { Stored } from '../local/catalog.ts';
import type { ImageRequest, SourceParts, Waiting } from '../local/importing.ts';
import { fileId } from '../local/layout.ts';
import type { Watched } from '../local/space.ts';
import type { Transport } from '../oci/transport.ts';
import { download } from './download.ts';

const SHA256 = /^[0-9a-f]{64}$/;
/**
 * The store remembers at most this number of URLs for one image, and forgets the oldest first. If a request names a forgotten URL, the
 * agent fetches the image again.
 */
const URLS_LIMIT = 64;

export interface HttpRequest extends ImageRequest {
  url: string;
  /** SHA-256 of the downloaded file, before it is unpacked. */
  sha256: string;
}

interface HttpSourceParts extends SourceParts {
  transport: Transport;
  /** Clock for tests, in milliseconds like `performance.now()`. */
  clock: (() => number) | undefined;
}

export class HttpSource {
  readonly #parts: HttpSourceParts;

  constructor(parts: HttpSourceParts) {
    this.#parts = parts;
  }

  async ensure(request: HttpRequest): Promise<Stored> {
    const digest = request.sha256.toLowerCase();
    if (!SHA256.test(digest)) {
      throw new ReasonedError(
        'ImageInvalid',
        `"${request.sha256}" is not a sha256, which has 64 hexadecimal digits`,
      );
    }
    const id = fileId(digest);
    const address = hashOf(request.url);
    return await request.holding(id, async () => {
      const present = this.#parts.catalog.get(id);
      if (present?.metadata.urls.includes(address) === true) {
        return present;
      }
      const stored = await this.#import({ ...request, sha256: digest });
      await this.#note(stored, address);
      return stored;
    });
  }

  async #note(stored: Stored, address: string): Promise<void> {
    const { metadata } = stored;
    // Several requests can wait for the same import. Another of these requests might have added the URL already.
    if (metadata.urls.includes(address)) {
      return;
    }
    metadata.urls = [...metadata.urls, address].slice(-URLS_LIMIT);
    await this.#parts.catalog.save(stored);
  }

  async #import(request: HttpRequest): Promise<Stored> {
    const { url, sha256, architecture } = request;
    return await this.#parts.importing.ensure(`${sha256} ${url}`, request, async (_signal, onProgress) => ({
      id: fileId(sha256),
      what: describeUrl(url),
      // Only the server's answer states the size.
      roomBytes: 0,
      metadata: { digest: `sha256:${sha256}`, architecture },
      run: (target, watched) => this.#run(request, target, { ...watched, onProgress }),
    }));
  }

  async #run(
    { url, sha256 }: HttpRequest,
    target: PullTarget,
    { signal, need, onProgress }: Watched & Waiting,
  ): Promise<void> {
    const { transport, clock, metrics, logger } = this.#parts;
    // If this file exists, an earlier attempt completed the disk, because the disk gets this name only when it is complete.
    if ((await unlessMissing(stat(target.disk))) !== undefined) {
      return;
    }
    const fetched = join(target.folder, 'download');
    const onBytes = (count: number): void => metrics.pulledBytes.inc(count);
    await download(url, sha256, fetched, { signal, onProgress, onBytes, onTotal: need, transport, clock });
    const compression = await compressionOf(fetched);
    if (compression !== undefined) {
      const unpacked = join(target.folder, 'unpacked');
      const { size } = await stat(fetched);
      // The size of the unpacked disk is not known in advance, so no space is reserved for it. Instead, the free disk space is watched.
      await unpack(compression, { from: fetched, to: unpacked, limitBytes: unpackedLimit(size) }, signal);
      await rename(unpacked, target.disk);
      await rm(fetched);
      return;
    }
    try {
      await digHoles(fetched);
    } catch (error) {
      // A failure to make holes does no harm. The zeros of the image then use disk space, but the content of the image is the same.
      logger.debug(
        { err: error, url: describeUrl(url) },
        'An image uses disk space for its zeros, because the host could not make a sparse file',
      );
    }
    await rename(fetched, target.disk);
  }
}

/** Returns the hash of a URL. The store keeps only this hash, because a URL can contain credentials. */
function hashOf(url: string): string {
  return createHash('sha256').update(url).digest('hex');
}
