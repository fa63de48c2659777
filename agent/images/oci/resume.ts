/** Streams the bytes of a blob, and resumes an interrupted transfer at the same byte. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Attempts, networkError, TransientError } from './failures.ts';
import type { Session } from './client.ts';
import { LeastRate } from './leastrate.ts';
import type { Response } from './transport.ts';
import type { BlobReference } from './manifests.ts';

interface Range {
  /** Position of the first byte (inclusive). */
  start: number;
  /** Position after the last byte (exclusive). */
  end: number;
}

/**
 * Yields exactly the bytes of `range` of a blob. If bytes are missing, the generator throws a ReasonedError. It does not verify a digest. For
 * an empty range it sends no request, because registries refuse a request that begins at the end of a blob.
 */
export async function* blobStream(
  session: Session,
  blob: BlobReference,
  range: Range,
  signal: AbortSignal,
): AsyncGenerator<Buffer, void, undefined> {
  const what = session.named(blob.digest);
  checkRange(range, blob, what);
  const attempts = new Attempts(range.start);
  const rate = new LeastRate(what);
  let at = range.start;
  while (at < range.end) {
    try {
      const part = { start: at, end: range.end };
      const { response, skip } = await open(session, blob, part, signal);
      for await (const chunk of cut(rate.over(response.body), skip, part.end - part.start)) {
        at += chunk.length;
        attempts.reached(at);
        yield chunk;
      }
      if (at < range.end) {
        throw new TransientError(
          new ReasonedError('ImageFetchFailed', `The transfer of ${what} was interrupted at byte ${at}`),
        );
      }
    } catch (error) {
      await attempts.failed(networkError(error, what, signal), signal);
    }
  }
}

/**
 * Requests the rest of a range. Returns the response, and the number of bytes to skip at the beginning of its body. Each try begins at the
 * registry, even if a storage server sent the earlier bytes. The URL of a storage server is valid for minutes only.
 */
async function open(
  session: Session,
  blob: BlobReference,
  { start, end }: Range,
  signal: AbortSignal,
): Promise<{ response: Response; skip: number }> {
  const { digest, size } = blob;
  const isWhole = start === 0 && end === size;
  const headers: Record<string, string> = isWhole ? {} : { range: `bytes=${start}-${end - 1}` };
  const response = await session.once(
    // The request excludes compressed transfer, because the digest applies to the bytes without compression.
    {
      method: 'GET',
      at: `blobs/${digest}`,
      reference: digest,
      headers: { ...headers, 'accept-encoding': 'identity' },
    },
    signal,
  );
  const mistake =
    response.status === 206 ? rangeMistake(response, start, end, size) : wholeMistake(response, size);
  if (mistake === undefined) {
    return { response, skip: response.status === 206 ? 0 : start };
  }
  // dump() discards the rest of the body. If the rest is large, dump() closes the connection.
  await response.body.dump();
  throw new ReasonedError('ImageFetchFailed', `${session.named(digest)}: ${response.url.host} ${mistake}`);
}

/** Skips `skip` bytes of the body, then yields at most `length` bytes, because a server can send more bytes than were requested. */
async function* cut(body: AsyncIterable<Buffer>, skip: number, length: number): AsyncGenerator<Buffer> {
  let toSkip = skip;
  let left = length;
  for await (const chunk of body) {
    const from = Math.min(toSkip, chunk.length);
    toSkip -= from;
    const wanted = chunk.subarray(from, from + left);
    left -= wanted.length;
    if (wanted.length > 0) {
      yield wanted;
    }
    if (left === 0) {
      return;
    }
  }
}

function rangeMistake({ headers }: Response, start: number, end: number, size: number): string | undefined {
  const header = headers['content-range'];
  const match = typeof header === 'string' ? /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(header.trim()) : null;
  if (match === null) {
    return 'sent a part without a usable Content-Range header';
  }
  const [first, last, total] = [Number(match[1]), Number(match[2]), match[3]];
  if (total !== '*' && Number(total) !== size) {
    return `states that the blob has ${total} bytes, but the manifest of the image states ${size}`;
  }
  if (first === start && last >= first && last < end) {
    return undefined;
  }
  return `sent bytes ${first}-${last} instead of ${start}-${end - 1}`;
}

function wholeMistake({ status, headers }: Response, size: number): string | undefined {
  if (status !== 200) {
    return `answered ${status}`;
  }
  const length = headers['content-length'];
  if (length === undefined || Number(length) === size) {
    return undefined;
  }
  return `sends ${String(length)} bytes of the blob, but the manifest of the image states ${size}`;
}

function checkRange({ start, end }: Range, { size }: BlobReference, what: string): void {
  const isRange =
    Number.isSafeInteger(start) && Number.isSafeInteger(end) && start >= 0 && start <= end && end <= size;
  if (!isRange) {
    throw new RangeError(`Bytes ${start} to ${end} are not within ${what}, which has ${size} bytes`);
  }
}
