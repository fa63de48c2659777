/** Blobs to a registry. */
import type { Readable } from 'node:stream';
import { Attempts, retrying, TransientError } from '../retries.ts';
import { ImageError } from '../store.ts';
import { isSha256 } from './reference.ts';
import type { Session } from './session.ts';
import { checkNoDowngrade, type Response } from './transport.ts';
import type { UploadBlob } from './types.ts';

/** Up to here a blob goes in one request, which every registry takes; larger ones in parts, since a break would cost all of it. */
const WHOLE_LIMIT_BYTES = 128 * 1024 ** 2;
/** One is in memory at a time. */
const PART_BYTES = 16 * 1024 ** 2;
/** What a registry may ask to be the smallest part. */
const PART_LIMIT_BYTES = 64 * 1024 ** 2;

const OCTETS = { 'content-type': 'application/octet-stream' };

/** The registry verifies its digest. Rejects with ImageError. */
export async function uploadBlob(session: Session, blob: UploadBlob, signal: AbortSignal): Promise<void> {
  if (!isSha256(blob.digest)) throw new TypeError(`${blob.digest} is no sha256 digest`);
  await retrying(async () => {
    const begun = await begin(session, blob, signal);
    if (begun === undefined) return;
    if (blob.size <= WHOLE_LIMIT_BYTES) await putWhole(session, blob, begun.location, signal);
    else await putParts(session, blob, begun, signal);
  }, signal);
}

interface Begun {
  /** Good for one request only; its answer has the next. */
  location: URL;
  partBytes: number;
}

/** Undefined when the registry had it in the other repository and that was enough. */
async function begin(session: Session, blob: UploadBlob, signal: AbortSignal): Promise<Begun | undefined> {
  const response = await post(session, blob, signal);
  await response.body.dump();
  if (response.status === 201) return undefined;
  const smallest = Number(response.headers['oci-chunk-min-length'] ?? 0);
  if (smallest > PART_LIMIT_BYTES) {
    throw new ImageError(
      'ImageFetchFailed',
      `${session.name}: the registry wants parts of ${smallest} bytes at least`,
    );
  }
  return { location: nextLocation(session, response), partBytes: Math.max(PART_BYTES, smallest) };
}

async function post(session: Session, blob: UploadBlob, signal: AbortSignal): Promise<Response> {
  const plain = { method: 'POST' as const, at: 'blobs/uploads/', reference: blob.digest, writes: true };
  if (blob.from === undefined) return await session.once(plain, signal);
  const query = new URLSearchParams({ mount: blob.digest, from: blob.from });
  try {
    return await session.once({ ...plain, at: `${plain.at}?${query.toString()}`, from: blob.from }, signal);
  } catch (error) {
    // The other repository may be closed to these credentials: the blob is sent then.
    const isClosed = error instanceof ImageError && /^Image(AccessDenied|NotFound)$/.test(error.reason);
    if (!isClosed) throw error;
    return await session.once(plain, signal);
  }
}

async function putWhole(
  session: Session,
  blob: UploadBlob,
  location: URL,
  signal: AbortSignal,
): Promise<void> {
  const headers = { ...OCTETS, 'content-length': String(blob.size) };
  await finish(session, blob, location, { headers, body: blob.content, signal });
}

async function putParts(
  session: Session,
  blob: UploadBlob,
  begun: Begun,
  signal: AbortSignal,
): Promise<void> {
  let { location } = begun;
  let sent = 0;
  for await (const bytes of partsOf(blob.content(), begun.partBytes)) {
    location = await putPart(session, blob, { location, sent, bytes }, signal);
    sent += bytes.length;
  }
  await finish(session, blob, location, { headers: OCTETS, body: undefined, signal });
}

interface Part {
  location: URL;
  /** Where it begins. */
  sent: number;
  bytes: Buffer;
}

/** Where the next part goes. A part that broke off goes on from what the registry holds, if it still knows the upload. */
async function putPart(session: Session, blob: UploadBlob, part: Part, signal: AbortSignal): Promise<URL> {
  const attempts = new Attempts();
  let { location, sent, bytes } = part;
  for (;;) {
    try {
      return await patch(session, blob, { location, sent, bytes }, signal);
    } catch (error) {
      await attempts.failed(error, signal);
      const held = await ask(session, blob, location, signal);
      const count = held.bytes - sent;
      if (count < 0 || count > bytes.length) throw lost(session, blob, held.bytes);
      ({ location } = held);
      if (count === bytes.length) return location;
      sent += count;
      bytes = bytes.subarray(count);
    }
  }
}

async function patch(session: Session, blob: UploadBlob, part: Part, signal: AbortSignal): Promise<URL> {
  const end = part.sent + part.bytes.length;
  const headers = {
    ...OCTETS,
    'content-length': String(part.bytes.length),
    'content-range': `${part.sent}-${end - 1}`,
  };
  const response = await session.once(
    {
      method: 'PATCH',
      at: part.location,
      reference: blob.digest,
      headers,
      body: () => part.bytes,
      writes: true,
    },
    signal,
  );
  await response.body.dump();
  // Some append whatever range is named, and some take less than they were given: what they hold is what counts.
  const held = heldBytes(response);
  if (held !== end) throw lost(session, blob, held);
  return nextLocation(session, response);
}

/** How much the registry holds of an upload. What it does not know any more is begun anew. */
async function ask(
  session: Session,
  blob: UploadBlob,
  location: URL,
  signal: AbortSignal,
): Promise<{ bytes: number; location: URL }> {
  try {
    const response = await session.once(
      { method: 'GET', at: location, reference: blob.digest, writes: true },
      signal,
    );
    await response.body.dump();
    return { bytes: heldBytes(response), location: nextLocation(session, response) };
  } catch (error) {
    throw error instanceof ImageError ? new TransientError(error) : error;
  }
}

interface Ending {
  headers: Readonly<Record<string, string>>;
  body: (() => Buffer | Readable) | undefined;
  signal: AbortSignal;
}

async function finish(session: Session, blob: UploadBlob, location: URL, ending: Ending): Promise<void> {
  const at = new URL(location);
  // Appended as text: what is there may be signed as it is written.
  at.search += `${at.search === '' ? '?' : '&'}digest=${encodeURIComponent(blob.digest)}`;
  const { headers, body } = ending;
  const response = await session.once(
    { method: 'PUT', at, reference: blob.digest, headers, body, writes: true },
    ending.signal,
  );
  await response.body.dump();
}

/** `Range: 0-N` of an answer; `0-0` may mean one byte or, of an upload just begun, none: parts are larger than both. */
function heldBytes({ headers }: Response): number {
  const match = typeof headers['range'] === 'string' ? /^(?:bytes=)?0-(\d+)$/.exec(headers['range']) : null;
  const last = Number(match?.[1] ?? 0);
  return last === 0 ? 0 : last + 1;
}

function nextLocation(session: Session, { headers, url }: Response): URL {
  const { location } = headers;
  if (typeof location !== 'string' || !URL.canParse(location, url.href)) {
    throw new ImageError(
      'ImageFetchFailed',
      `${session.name}: ${url.host} does not say where the upload goes on`,
    );
  }
  const next = new URL(location, url);
  checkNoDowngrade(url, next, session.name);
  return next;
}

function lost(session: Session, blob: UploadBlob, held: number): TransientError {
  const what = session.named(blob.digest);
  return new TransientError(
    new ImageError('ImageFetchFailed', `${what}: the registry holds ${held} bytes of what was sent`),
  );
}

/** Of `size` bytes each, but for the last. */
async function* partsOf(content: Readable | Buffer, size: number): AsyncGenerator<Buffer> {
  let waiting: Buffer[] = [];
  let length = 0;
  for await (const chunk of Buffer.isBuffer(content) ? [content] : content) {
    let rest = chunk as Buffer;
    while (length + rest.length >= size) {
      const taken = rest.subarray(0, size - length);
      yield Buffer.concat([...waiting, taken]);
      rest = rest.subarray(taken.length);
      waiting = [];
      length = 0;
    }
    if (rest.length > 0) waiting.push(rest);
    length += rest.length;
  }
  if (length > 0) yield Buffer.concat(waiting);
}
