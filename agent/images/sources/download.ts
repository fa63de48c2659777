/**
 * Downloads over http and https, with the digest known beforehand. A call takes up what an earlier one left, where the server can
 * send the rest.
 */
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open, readFile, rm, writeFile } from 'node:fs/promises';
import * as z from 'zod';
import { describeUrl } from '../../../api/v1alpha1/describe.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing } from '../../../base/errors.ts';
import { writeAll } from '../../disks/sparse.ts';
import { asReasonedError } from '../layouts/pull.ts';
import {
  Attempts,
  isTransientStatus,
  networkError,
  retryAfterMilliseconds,
  TransientError,
} from '../oci/failures.ts';
import type { Response, Transport } from '../oci/transport.ts';

/** 1 TiB: larger than any image of a desktop system, and a bound for a stream that never ends. */
const SIZE_LIMIT_BYTES = 1024 ** 4;
/** How much of a file that is there already is read at a time. */
const READ_BYTES = 1024 ** 2;
/** 416: the part that is asked for begins beyond the file's end. */
const ANSWERED: ReadonlySet<number> = new Set([200, 206, 416]);

export interface DownloadOptions {
  /** 0–100, of the bytes to fetch. */
  onProgress: (percent: number) => void;
  /** Awaited before the first byte is written: how many there will be in all, where the server says it. */
  onTotal?: (bytes: number) => Promise<void>;
  signal: AbortSignal;
  transport: Transport;
}

/**
 * Fetches `url` to `path` and syncs it. When this rejects, the bytes that have come stay for the next call, with `PATH.source`
 * beside them, unless they are of no use. Nothing may use the file before this resolves.
 *
 * @throws ReasonedError
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

/** An error of the URL itself would tell the whole of it, and it may hold a password. */
function readUrl(text: string): URL {
  const url = URL.parse(text);
  if (url === null) {
    throw new ReasonedError('ImageSourceUnsupported', describeUrl(text));
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new ReasonedError('ImageSourceUnsupported', `${url.protocol} is not http or https`);
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
  /** The address, for people. */
  readonly #what: string;
  #source: Source;
  /** Of the first `#at` bytes of the file. */
  #hash: Hash = createHash('sha256');
  #at = 0;
  #percent = 0;

  constructor(file: FileHandle, parts: Parts, source: Source) {
    this.#file = file;
    this.#parts = parts;
    this.#what = describeUrl(parts.url);
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
      // What was there may have been of another version.
      await this.#startOver();
      await this.#fetch();
    }
    if (this.#isRight()) {
      return;
    }
    const found = this.#hash.digest('hex');
    const { sha256 } = this.#parts;
    throw new ReasonedError('DigestMismatch', `${this.#what} has sha256 ${found}, expected ${sha256}`);
  }

  async #fetch(): Promise<void> {
    const { options } = this.#parts;
    const attempts = new Attempts();
    for (;;) {
      try {
        await this.#attempt(attempts);
        return;
      } catch (error) {
        const failure = networkError(asReasonedError(error, this.#what), this.#what, options.signal);
        await attempts.failed(failure, options.signal);
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
    for await (const chunk of response.body as AsyncIterable<Buffer>) {
      await writeAll(this.#file, chunk, this.#at);
      this.#hash.update(chunk);
      this.#at += chunk.length;
      attempts.progress(chunk.length);
      this.#tell();
      if (this.#at > SIZE_LIMIT_BYTES) {
        throw new ReasonedError('ImageFetchFailed', `${this.#what}: more than ${SIZE_LIMIT_BYTES} bytes`);
      }
    }
    const { total } = this.#source;
    if (total !== undefined && this.#at < total) {
      const words = `${this.#what} broke off at byte ${this.#at}`;
      throw new TransientError(new ReasonedError('ImageFetchFailed', words));
    }
  }

  #headers(): Record<string, string> {
    // Encoded on the way, it would be other bytes than those that the digest is of.
    const identity = { 'accept-encoding': 'identity' };
    if (this.#at === 0) {
      return identity;
    }
    const { validator } = this.#source;
    const condition = validator === undefined ? {} : { 'if-range': validator };
    return { ...identity, range: `bytes=${this.#at}-`, ...condition };
  }

  /** Goes on where the answer does: at the end of what is there, or at the beginning. */
  async #begin({ status, headers, body }: Response): Promise<void> {
    if (status === 206) {
      const [, start, total] = /^bytes (\d+)-\d+\/(\d+)$/.exec(String(headers['content-range'])) ?? [];
      if (Number(start) === this.#at) {
        this.#source = { ...this.#source, total: Number(total) };
        return;
      }
    }
    const isWhole = status === 200;
    if (!isWhole) {
      await body.dump();
    }
    await this.#startOver();
    if (!isWhole) {
      const words = `${this.#what} answered ${status} with another part than was asked for`;
      throw new TransientError(new ReasonedError('ImageFetchFailed', words));
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
      // Its end is an error of its own, of which nobody need hear.
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
      this.#parts.options.onProgress(percent);
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

/** Kept beside the bytes that have come of a file, for the next call. */
const sourceSchema = z.object({
  /** ETag or time of change: the rest must be of the same version. */
  validator: z.string().optional(),
  total: z.number().optional(),
});
type Source = z.infer<typeof sourceSchema>;

/** A weak ETag says nothing of single bytes. */
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

/** A file that cannot be read is as good as none: the digest decides in the end. */
async function readSource(path: string): Promise<Source> {
  try {
    return sourceSchema.parse(JSON.parse(await readFile(sourceFile(path), 'utf8')));
  } catch (error) {
    if (isMissing(error) || error instanceof SyntaxError || error instanceof z.ZodError) {
      return {};
    }
    throw error;
  }
}
