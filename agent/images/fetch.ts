/** Downloads over http and https: to addresses that were checked, with the digest known beforehand. */
import { createHash } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { Agent, request } from 'undici';
import { checkedLookup, checkLiteralAddress } from './addresses.ts';
import { ImageError } from './store.ts';

/** A mirror may have to wake a disk; a silent one is given up. */
const HEADERS_TIMEOUT_MILLISECONDS = 60_000;
const BODY_IDLE_TIMEOUT_MILLISECONDS = 60_000;
const REDIRECT_LIMIT = 5;
/** 1 TiB: larger than any image of a desktop system, and a bound for a stream that never ends. */
const SIZE_LIMIT_BYTES = 1024 ** 4;

export interface FetchOptions {
  /** 0–100, of the bytes to fetch. */
  onProgress: (percent: number) => void;
  signal: AbortSignal;
  /** Also from addresses of this host itself and of its link: for tests and mirrors on the host. */
  allowLoopback: boolean;
}

/** Streams `url` to `path`; nothing may use the file before this resolves. Throws {@link ImageError}. */
export async function download(
  url: string,
  sha256: string,
  path: string,
  options: FetchOptions,
): Promise<void> {
  const dispatcher = new Agent({
    headersTimeout: HEADERS_TIMEOUT_MILLISECONDS,
    bodyTimeout: BODY_IDLE_TIMEOUT_MILLISECONDS,
    // The addresses that are connected to are the ones that were checked: a second look-up could answer otherwise.
    connect: options.allowLoopback ? {} : { lookup: checkedLookup },
  });
  try {
    const response = await follow(new URL(url), dispatcher, options);
    const digest = await save(response, path, options);
    if (digest !== sha256.toLowerCase()) {
      throw new ImageError('DigestMismatch', `${url} has sha256 ${digest}, expected ${sha256}`);
    }
  } catch (error) {
    throw asImageError(error, url, options.signal);
  } finally {
    await dispatcher.destroy();
  }
}

type Response = Awaited<ReturnType<typeof request>>;

async function follow(first: URL, dispatcher: Agent, options: FetchOptions): Promise<Response> {
  let url = first;
  for (let hop = 0; hop <= REDIRECT_LIMIT; hop += 1) {
    checkUrl(url, options.allowLoopback);
    const response = await request(url, { dispatcher, signal: options.signal });
    const { location } = response.headers;
    if (response.statusCode === 200) return response;
    // An error handler must be there before the body is thrown away.
    await response.body.dump();
    if (response.statusCode < 300 || response.statusCode >= 400 || typeof location !== 'string') {
      const reason = response.statusCode === 404 ? 'ImageNotFound' : 'ImageFetchFailed';
      throw new ImageError(reason, `${url.href} answered ${response.statusCode}`);
    }
    const next = new URL(location, url);
    if (url.protocol === 'https:' && next.protocol !== 'https:') {
      throw new ImageError('ImageFetchFailed', `${url.href} leads from https to ${next.protocol}`);
    }
    url = next;
  }
  throw new ImageError('ImageFetchFailed', `${first.href} leads on more than ${REDIRECT_LIMIT} times`);
}

/** Literal addresses are never looked up, so they are checked here. */
function checkUrl(url: URL, allowLoopback: boolean): void {
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new ImageError('ImageSourceUnsupported', `${url.protocol} is not http or https`);
  }
  if (!allowLoopback) checkLiteralAddress(url);
}

/** The sha256 of what was written, in hexadecimal digits. */
async function save(response: Response, path: string, { onProgress, signal }: FetchOptions): Promise<string> {
  const total = Number(response.headers['content-length'] ?? 0);
  const hash = createHash('sha256');
  let received = 0;
  let percent = 0;
  const measure = new Transform({
    transform(chunk: Buffer, _encoding, callback) {
      hash.update(chunk);
      received += chunk.length;
      const now = total > 0 ? Math.min(100, Math.floor((received * 100) / total)) : 0;
      if (now > percent) onProgress(now);
      percent = Math.max(percent, now);
      if (received > SIZE_LIMIT_BYTES) {
        callback(new ImageError('ImageFetchFailed', `more than ${SIZE_LIMIT_BYTES} bytes`));
      } else callback(null, chunk);
    },
  });
  await pipeline(response.body, measure, createWriteStream(path, { mode: 0o600, flags: 'wx', flush: true }), {
    signal,
  });
  return hash.digest('hex');
}

function asImageError(error: unknown, url: string, signal: AbortSignal): unknown {
  if (error instanceof ImageError || signal.aborted) return error;
  const cause = error instanceof Error && error.cause instanceof ImageError ? error.cause : undefined;
  if (cause !== undefined) return cause;
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  if (code === 'ENOSPC') return new ImageError('DiskFull', `no room for ${url}`);
  return new ImageError('ImageFetchFailed', `${url}: ${String(error)}`, { cause: error });
}
