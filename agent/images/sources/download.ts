/**
 * Downloads over http and https: from addresses that were checked, with the digest known beforehand. What an earlier call
 * left is gone on with where the server can.
 */
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open, rm } from 'node:fs/promises';
import { Agent, type Dispatcher } from 'undici';
import { describeUrl } from '../../../api/v1alpha1/describe.ts';
import { isDiskFull } from '../../../base/errors.ts';
import type { Addresses } from '../oci/addresses.ts';
import { readSource, type Source, sourceFile, sourceOf, writeSource } from './fetchsource.ts';
import { follow, type Response } from './follow.ts';
import { writeAll } from '../../disks/sparse.ts';
import { Attempts, networkError, TransientError } from '../oci/failures.ts';
import { ImageError } from '../local/types.ts';

/** A mirror may have to wake a disk; a silent one is given up. */
const HEADERS_TIMEOUT_MILLISECONDS = 60_000;
const BODY_IDLE_TIMEOUT_MILLISECONDS = 60_000;
/** 1 TiB: larger than any image of a desktop system, and a bound for a stream that never ends. */
const SIZE_LIMIT_BYTES = 1024 ** 4;
/** Of what is there already. */
const READ_BYTES = 1024 ** 2;

export interface FetchOptions {
  /** 0–100, of the bytes to fetch. */
  onProgress: (percent: number) => void;
  /** Awaited before the first byte is written: how many there will be in all, where the server says it. */
  onTotal?: (bytes: number) => Promise<void>;
  signal: AbortSignal;
  /** Which may be connected to. */
  addresses: Addresses;
}

/**
 * Fetches `url` to `path` and syncs it. What is there already is gone on with; when this rejects, what has come stays for
 * that, with `PATH.source` beside it, unless it is of no use. Nothing may use the file before this resolves.
 *
 * @throws ImageError
 */
export async function download(
  url: string,
  sha256: string,
  path: string,
  options: FetchOptions,
): Promise<void> {
  const dispatcher = new Agent({
    headersTimeout: HEADERS_TIMEOUT_MILLISECONDS,
    bodyTimeout: BODY_IDLE_TIMEOUT_MILLISECONDS,
    allowH2: false,
    connect: options.addresses.connector({ allowH2: false }),
  });
  try {
    const file = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600);
    try {
      const source = await readSource(path);
      await new Download(file, {
        url,
        sha256: sha256.toLowerCase(),
        path,
        source,
        options,
        dispatcher,
      }).run();
      await file.sync();
    } finally {
      await file.close();
    }
    await rm(sourceFile(path), { force: true });
  } catch (error) {
    const isWorthless = error instanceof ImageError && error.reason === 'DigestMismatch';
    if (isWorthless) {
      await Promise.all([path, sourceFile(path)].map((each) => rm(each, { force: true })));
    }
    throw error;
  } finally {
    await dispatcher.destroy();
  }
}

interface Parts {
  url: string;
  sha256: string;
  path: string;
  source: Source;
  options: FetchOptions;
  dispatcher: Dispatcher;
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

  constructor(file: FileHandle, parts: Parts) {
    this.#file = file;
    this.#parts = parts;
    this.#what = describeUrl(parts.url);
    this.#source = parts.source;
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
    throw new ImageError('DigestMismatch', `${this.#what} has sha256 ${found}, expected ${sha256}`);
  }

  async #fetch(): Promise<void> {
    const { options } = this.#parts;
    const attempts = new Attempts();
    for (;;) {
      try {
        await this.#attempt(attempts);
        return;
      } catch (error) {
        await attempts.failed(asFailure(error, this.#what, options.signal), options.signal);
      }
    }
  }

  async #attempt(attempts: Attempts): Promise<void> {
    const { url, options, dispatcher } = this.#parts;
    const response = await follow(url, this.#headers(), { signal: options.signal, dispatcher });
    await this.#begin(response);
    await this.#announce(response);
    for await (const chunk of response.body as AsyncIterable<Buffer>) {
      await writeAll(this.#file, chunk, this.#at);
      this.#hash.update(chunk);
      this.#at += chunk.length;
      attempts.progress(chunk.length);
      this.#tell();
      if (this.#at > SIZE_LIMIT_BYTES) {
        throw new ImageError('ImageFetchFailed', `${this.#what}: more than ${SIZE_LIMIT_BYTES} bytes`);
      }
    }
    const { total } = this.#source;
    if (total !== undefined && this.#at < total) {
      const words = `${this.#what} broke off at byte ${this.#at}`;
      throw new TransientError(new ImageError('ImageFetchFailed', words));
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
  async #begin({ statusCode, headers, body }: Response): Promise<void> {
    if (statusCode === 206) {
      const [, start, total] = /^bytes (\d+)-\d+\/(\d+)$/.exec(String(headers['content-range'])) ?? [];
      if (Number(start) === this.#at) {
        this.#source = { ...this.#source, total: Number(total) };
        return;
      }
    }
    const isWhole = statusCode === 200;
    if (!isWhole) {
      await body.dump();
    }
    await this.#startOver();
    if (!isWhole) {
      const words = `${this.#what} answered ${statusCode} with another part than was asked for`;
      throw new TransientError(new ImageError('ImageFetchFailed', words));
    }
    this.#source = sourceOf(headers);
    await writeSource(this.#parts.path, this.#source);
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

function asFailure(error: unknown, what: string, signal: AbortSignal): unknown {
  if (isDiskFull(error)) {
    return new ImageError('DiskFull', `no room for ${what}`);
  }
  return networkError(error, what, signal);
}
