/**
 * Images from web servers. An image on this host is reused only for URLs from which it was fetched before. For another URL, the agent
 * fetches the image again. Otherwise a user who knows only the digest of another user's image could get this image. Such digests are not
 * secret, because the statuses of Nodes show them. A download that was interrupted continues: only the missing part is fetched, if the
 * server can send a part of the file.
 */
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { describeUrl } from '../../../api/v1alpha1/source.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { unlessMissing } from '../../disks/diskio.ts';
import { readCompression, digHoles, unpack, unpackedLimit } from '../../disks/unpack.ts';
import { asReasonedError, type PullTarget } from '../layouts/pull.ts';
import type { ImageRequest, CatalogEntry, WaitingCaller } from '../local/catalog.ts';
import type { SourceImage, SourceParts } from '../local/importing.ts';
import { fileId } from '../local/layout.ts';
import type { Watched } from '../local/space.ts';
import type { Response, RegistryTransport } from '../oci/transport.ts';
import { parseDocument } from '../../../api/v1alpha1/machine.ts';
import { writeAll } from '../../disks/sparse.ts';
import {
  Attempts,
  isTransientStatus,
  LeastRate,
  networkError,
  retryAfterMilliseconds,
  TransientError,
} from '../oci/failures.ts';

const SHA256 = /^[0-9a-f]{64}$/;
/**
 * The store remembers at most this number of URLs for one image, and forgets the oldest first. If a request names a forgotten URL, the
 * agent fetches the image again.
 */
const URLS_LIMIT = 64;

interface HttpParts extends SourceParts {
  transport: RegistryTransport;
  /** Clock for tests, in milliseconds like `performance.now()`. */
  clock: (() => number) | undefined;
}

/** One requested file of a web server. */
export class HttpImage implements SourceImage {
  readonly names: readonly string[];
  readonly #parts: HttpParts;
  readonly #request: ImageRequest;
  readonly #url: string;
  /** SHA-256 of the downloaded file, before it is unpacked. */
  readonly #sha256: string;

  constructor(parts: HttpParts, { url, sha256 }: { url: string; sha256: string }, request: ImageRequest) {
    this.#parts = parts;
    this.#request = request;
    this.#url = url;
    this.#sha256 = sha256.toLowerCase();
    this.names = [request.name ?? `sha256:${this.#sha256}`];
  }

  async ensure(): Promise<CatalogEntry> {
    if (!SHA256.test(this.#sha256)) {
      throw new ReasonedError(
        'ImageInvalid',
        `"${this.#sha256}" is not a sha256, which has 64 hexadecimal digits`,
      );
    }
    const { holders, catalog } = this.#parts;
    const id = fileId(this.#sha256);
    const address = hashOf(this.#url);
    return await holders.during(this.#request.holder, id, async () => {
      const present = catalog.get(id);
      if (present?.metadata.urls.includes(address) === true) {
        return present;
      }
      const stored = await this.#import();
      await this.#note(stored, address);
      return stored;
    });
  }

  async #note(stored: CatalogEntry, address: string): Promise<void> {
    const { metadata } = stored;
    // Several requests can wait for the same import. Another of these requests might have added the URL already.
    if (metadata.urls.includes(address)) {
      return;
    }
    metadata.urls = [...metadata.urls, address].slice(-URLS_LIMIT);
    await this.#parts.catalog.save(stored);
  }

  async #import(): Promise<CatalogEntry> {
    const sha256 = this.#sha256;
    const source = `${sha256} ${this.#url}`;
    return await this.#parts.importing.ensure(source, this.#request, async (_signal, onProgress) => ({
      id: fileId(sha256),
      what: describeUrl(this.#url),
      // Only the server's answer states the size.
      roomBytes: 0,
      metadata: { digest: `sha256:${sha256}`, architecture: this.#request.architecture },
      run: (target, watched) => this.#run(target, { ...watched, onProgress }),
    }));
  }

  async #run(target: PullTarget, { signal, need, onProgress }: Watched & WaitingCaller): Promise<void> {
    const [url, sha256] = [this.#url, this.#sha256];
    const { transport, clock, metrics, logger } = this.#parts;
    // If this file exists, an earlier attempt completed the disk, because the disk gets this name only when it is complete.
    if ((await unlessMissing(stat(target.disk))) !== undefined) {
      return;
    }
    const fetched = join(target.folder, 'download');
    const onBytes = (count: number): void => metrics.pulledBytes.inc(count);
    await download(url, sha256, fetched, { signal, onProgress, onBytes, onTotal: need, transport, clock });
    const compression = await readCompression(fetched);
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

/** Size limit of a download: 1 TiB. The limit is larger than any image of a desktop system, and stops a download that would never end. */
const SIZE_LIMIT_BYTES = 1024 ** 4;
/** Number of bytes of an existing file that are read at a time. */
const READ_BYTES = 1024 ** 2;
/** HTTP statuses after which the download can continue or restart. 416 means that the requested part begins beyond the file's end. */
const ANSWERED: ReadonlySet<number> = new Set([200, 206, 416]);

interface DownloadOptions {
  /** Called with the part of the file that has arrived: `percent` (0–100) and `bytes`. */
  onProgress: (percent: number, bytes: number) => void;
  /** Called with the number of bytes that have arrived since the last call. */
  onBytes: (count: number) => void;
  /** Called with the total number of bytes, if the server states it. No byte is written before the promise of this call resolves. */
  onTotal?: (bytes: number) => Promise<void>;
  signal: AbortSignal;
  transport: RegistryTransport;
  /** Clock for tests, in milliseconds like `performance.now()`. */
  clock?: (() => number) | undefined;
}

/**
 * Fetches `url` to the file `path`, verifies it and syncs it. Callers must not use the file before the promise resolves. When the promise
 * rejects, the fetched bytes and the data about them (`PATH.source`) stay for the next call, unless the digest is wrong.
 *
 * @throws ReasonedError when the download fails or its digest differs.
 */
export async function download(
  url: string,
  sha256: string,
  path: string,
  options: DownloadOptions,
): Promise<void> {
  const parts = { url: readUrl(url), sha256: sha256.toLowerCase(), path, options };
  try {
    const file = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600);
    try {
      await new Download(file, parts, await readSource(path)).run();
      await file.sync();
    } finally {
      await file.close();
    }
    await rm(sourceFile(path), { force: true });
  } catch (error) {
    const isWorthless = error instanceof ReasonedError && error.reason === 'DigestMismatch';
    if (isWorthless) {
      await Promise.all([path, sourceFile(path)].map((each) => rm(each, { force: true })));
    }
    throw error;
  }
}

/** Parses a URL. An error of this function does not show the URL, because the URL can contain a password. */
function readUrl(text: string): URL {
  const url = URL.parse(text);
  if (url === null) {
    throw new ReasonedError('ImageSourceUnsupported', 'The URL of the image cannot be read');
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new ReasonedError(
      'ImageSourceUnsupported',
      `The URL of the image has the protocol ${url.protocol} instead of http or https`,
    );
  }
  return url;
}

interface Parts {
  url: URL;
  sha256: string;
  path: string;
  options: DownloadOptions;
}

class Download {
  readonly #file: FileHandle;
  readonly #parts: Parts;
  /** The URL as messages show it, without credentials. */
  readonly #what: string;
  readonly #rate: LeastRate;
  #source: Source;
  /** Hash of the first `#at` bytes of the file. */
  #hash: Hash = createHash('sha256');
  #at = 0;
  #percent = 0;

  constructor(file: FileHandle, parts: Parts, source: Source) {
    this.#file = file;
    this.#parts = parts;
    this.#what = describeUrl(parts.url);
    this.#rate = new LeastRate(this.#what, parts.options.clock);
    this.#source = source;
  }

  async run(): Promise<void> {
    await this.#readOld();
    const hasOld = this.#at > 0;
    if (hasOld && this.#isRight()) {
      return;
    }
    if (this.#source.total !== undefined && this.#at >= this.#source.total) {
      await this.#startOver();
    }
    await this.#fetch();
    if (!this.#isRight() && hasOld) {
      // The digest can be wrong because the old bytes belong to another version of the file. So the whole file is fetched again.
      await this.#startOver();
      await this.#fetch();
    }
    if (this.#isRight()) {
      return;
    }
    const message = `has the sha256 ${this.#hash.digest('hex')} instead of ${this.#parts.sha256}`;
    throw new ReasonedError('DigestMismatch', `${this.#what} ${message}`);
  }

  async #fetch(): Promise<void> {
    const { signal } = this.#parts.options;
    // Progress counts from byte 0, not from the end of the existing bytes, because the download can begin again at byte 0.
    const attempts = new Attempts();
    for (;;) {
      try {
        await this.#attempt(attempts);
        return;
      } catch (error) {
        const failure = networkError(asReasonedError(error, this.#what), this.#what, signal);
        await attempts.failed(failure, signal);
      }
    }
  }

  async #attempt(attempts: Attempts): Promise<void> {
    const { url, options } = this.#parts;
    const exchange = { method: 'GET' as const, url, headers: this.#headers(), what: this.#what };
    const response = await options.transport.send(exchange, options.signal);
    if (!ANSWERED.has(response.status)) {
      await response.body.dump();
      throw refusal(response);
    }
    await this.#begin(response);
    await this.#announce(response);
    for await (const chunk of this.#rate.over(response.body)) {
      await writeAll(this.#file, chunk, this.#at);
      this.#hash.update(chunk);
      this.#at += chunk.length;
      attempts.reached(this.#at);
      options.onBytes(chunk.length);
      this.#tell();
      if (this.#at > SIZE_LIMIT_BYTES) {
        throw new ReasonedError('ImageFetchFailed', `${this.#what} has more than ${SIZE_LIMIT_BYTES} bytes`);
      }
    }
    const { total } = this.#source;
    if (total !== undefined && this.#at < total) {
      const message = `The transfer of ${this.#what} was interrupted at byte ${this.#at}`;
      throw new TransientError(new ReasonedError('ImageFetchFailed', message));
    }
  }

  #headers(): Record<string, string> {
    // The request excludes compressed transfer, because the digest applies to the bytes without compression.
    const identity = { 'accept-encoding': 'identity' };
    if (this.#at === 0) {
      return identity;
    }
    const { validator } = this.#source;
    const condition = validator === undefined ? {} : { 'if-range': validator };
    return { ...identity, range: `bytes=${this.#at}-`, ...condition };
  }

  /**
   * Prepares the file for the answer of the server. If the answer begins at the end of the existing bytes, these bytes stay. Otherwise the
   * function empties the file, so that the download begins again.
   *
   * @throws TransientError when the answer contains another part of the file than the requested part.
   */
  async #begin({ status, headers, body }: Response): Promise<void> {
    if (status === 206) {
      const [, start, total] = /^bytes (\d+)-\d+\/(\d+)$/.exec(String(headers['content-range'])) ?? [];
      if (Number(start) === this.#at) {
        this.#source = { ...this.#source, total: Number(total) };
        return;
      }
    }
    await this.#startOver();
    if (status !== 200) {
      await body.dump();
      const message = `${this.#what} answered ${status}, but did not send the requested part of the file`;
      throw new TransientError(new ReasonedError('ImageFetchFailed', message));
    }
    this.#source = sourceOf(headers);
    await writeFile(sourceFile(this.#parts.path), JSON.stringify(this.#source), { mode: 0o600 });
  }

  async #announce({ body }: Response): Promise<void> {
    const { total } = this.#source;
    if (total === undefined) {
      return;
    }
    try {
      await this.#parts.options.onTotal?.(total);
    } catch (error) {
      // destroy() makes the body emit another error, which is ignored here. The caller gets the first error.
      body.on('error', () => undefined).destroy();
      throw error;
    }
  }

  async #startOver(): Promise<void> {
    await this.#file.truncate(0);
    this.#hash = createHash('sha256');
    this.#at = 0;
    this.#source = {};
  }

  async #readOld(): Promise<void> {
    const buffer = Buffer.allocUnsafe(READ_BYTES);
    for (;;) {
      this.#parts.options.signal.throwIfAborted();
      const { bytesRead } = await this.#file.read(buffer, 0, READ_BYTES, this.#at);
      if (bytesRead === 0) {
        return;
      }
      this.#hash.update(buffer.subarray(0, bytesRead));
      this.#at += bytesRead;
    }
  }

  #isRight(): boolean {
    return this.#hash.copy().digest('hex') === this.#parts.sha256;
  }

  #tell(): void {
    const { total = 0 } = this.#source;
    const percent = total > 0 ? Math.min(100, Math.floor((this.#at * 100) / total)) : 0;
    if (percent > this.#percent) {
      this.#parts.options.onProgress(percent, this.#at);
    }
    this.#percent = Math.max(percent, this.#percent);
  }
}

function refusal({ url, status, headers }: Response): Error {
  const reason = status === 404 ? 'ImageNotFound' : 'ImageFetchFailed';
  const error = new ReasonedError(reason, `${describeUrl(url)} answered ${status}`);
  return isTransientStatus(status)
    ? new TransientError(error, retryAfterMilliseconds(headers['retry-after']))
    : error;
}

/** Data from the server's headers about an unfinished download. The data is stored beside the fetched bytes for the next call. */
const sourceSchema = z.object({
  /** ETag or time of the last change. The next call uses this value to get the remaining bytes of the same version of the file. */
  validator: z.string().optional(),
  total: z.number().optional(),
});
type Source = z.infer<typeof sourceSchema>;

/** Returns the data of an answer's headers. A weak ETag is ignored, because files with different bytes can have the same weak ETag. */
function sourceOf({ etag, 'last-modified': changed, 'content-length': length }: Response['headers']): Source {
  const validator = typeof etag === 'string' && !etag.startsWith('W/') ? etag : changed;
  return {
    ...(typeof validator === 'string' ? { validator } : {}),
    ...(typeof length === 'string' ? { total: Number(length) } : {}),
  };
}

function sourceFile(path: string): string {
  return `${path}.source`;
}

/** Reads the stored data about an unfinished download. Missing or invalid data does no harm, because the digest is checked at the end. */
async function readSource(path: string): Promise<Source> {
  const text = await unlessMissing(readFile(sourceFile(path), 'utf8'));
  return sourceSchema.safeParse(parseDocument(text)).data ?? {};
}
