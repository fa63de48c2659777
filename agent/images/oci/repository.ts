/** Reads and writes manifests and blobs in repositories of registries (distribution specification 1.1). */
import { buffer } from 'node:stream/consumers';
import type { Readable } from 'node:stream';
import { Attempts, LeastRate, networkError, retrying, TransientError } from './failures.ts';
import { readBody } from './refusals.ts';
import {
  type BlobReference,
  choose,
  digestOf,
  type Fetched,
  invalidJson,
  MANIFEST_ACCEPT,
  MANIFEST_LIMITS,
  pick,
  readManifest,
  requireContent,
  type ResolvedManifest,
} from './manifests.ts';
import { isSha256, type Reference } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Credential, InsecureRoute } from './credentials.ts';
import { RegistrySession } from './client.ts';
import { RegistryTokens } from './tokens.ts';
import { checkNoDowngrade, type RegistriesOptions, type Response, RegistryTransport } from './transport.ts';

/** Largest accepted number of nested indexes between a tag and its manifest. No publisher needs more than two. */
const INDEX_DEPTH = 3;

/** HTTP status of an answer with the requested part of a blob. */
const PARTIAL = 206;
/** HTTP status with which a registry answers a DELETE request if its configuration forbids removals. */
const NOT_ALLOWED = 405;

/** Client of all registries from which images are pulled and to which images are pushed. All registries share one pool of connections. */
export class Registries {
  readonly #transport: RegistryTransport;
  readonly #tokens: RegistryTokens;

  /** Reads the files of certificate authorities. @throws Error when a file cannot be read. */
  constructor(options: RegistriesOptions) {
    this.#transport = new RegistryTransport(options);
    this.#tokens = new RegistryTokens(this.#transport);
  }

  /**
   * Returns a client for one repository. `route` is set if the connection to its registry is insecure. The call sends no request. Tags and
   * digests are parameters of the client's methods.
   */
  repository(
    reference: Pick<Reference, 'registry' | 'repository'>,
    credential: Credential | undefined,
    route?: InsecureRoute,
  ): Repository {
    const shared = { transport: this.#transport, tokens: this.#tokens };
    return new Repository(new RegistrySession(reference, credential, shared, route));
  }

  /** Closes all connections. Requests that are not finished fail. */
  async close(): Promise<void> {
    await this.#transport.close();
  }
}

/** One repository of one registry. Content that is read as a whole is verified against its digest. */
export class Repository {
  /** Name for messages: `registry.example/team/image`. */
  readonly name: string;
  readonly #session: RegistrySession;

  constructor(session: RegistrySession) {
    this.#session = session;
    this.name = session.name;
  }

  /**
   * Returns the digest of the manifest or index that a tag or digest names now. Sends one HEAD request. If the registry's answer does not
   * contain the digest, also sends a GET request.
   *
   * @throws ReasonedError when there is no such manifest, or these credentials give no access to it.
   */
  async head(reference: string, signal: AbortSignal): Promise<string> {
    const response = await this.#session.ask(
      { method: 'HEAD', at: `manifests/${reference}`, reference, headers: { accept: MANIFEST_ACCEPT } },
      signal,
    );
    await response.body.dump();
    const digest = digestHeader(response);
    // Old registries do not send the header with the digest. So the client fetches the manifest, and computes its digest.
    if (digest === undefined) {
      return (await this.#manifest(reference, signal)).digest;
    }
    this.#checkDigest(reference, digest);
    return digest;
  }

  /**
   * Returns the manifest of a tag or digest. If `reference` names an index, the function returns the manifest that the index lists for this
   * architecture (os linux or darwin).
   */
  async resolve(
    reference: string,
    architecture: 'amd64' | 'arm64',
    signal: AbortSignal,
  ): Promise<ResolvedManifest> {
    let fetched = await this.#manifest(reference, signal);
    const tagDigest = fetched.digest;
    for (let depth = 0; depth <= INDEX_DEPTH; depth += 1) {
      const { digest, document } = fetched;
      if (document.kind === 'manifest') {
        return { digest, tagDigest, architecture, manifest: document.manifest };
      }
      const candidates = pick(document.index, architecture, this.#session.named(reference));
      const reader = {
        manifest: async (candidate: string) => await this.#manifest(candidate, signal),
        blob: async (blob: BlobReference, limitBytes: number) => await this.blob(blob, limitBytes, signal),
      };
      fetched = await choose(reader, candidates, architecture);
    }
    throw new ReasonedError(
      'ImageInvalid',
      `${this.#session.named(reference)} has more than ${INDEX_DEPTH} nested indexes`,
    );
  }

  /**
   * Returns the whole content of a small blob after a check of its digest.
   *
   * @throws ReasonedError when the blob is larger than `limitBytes` or its digest differs.
   */
  async blob(blob: BlobReference, limitBytes: number, signal: AbortSignal): Promise<Buffer> {
    const { digest, size } = blob;
    requireContent(blob, this.name);
    if (size > limitBytes) {
      throw new ReasonedError(
        'ImageInvalid',
        `${this.#session.named(digest)} has ${size} bytes, more than the allowed ${limitBytes}`,
      );
    }
    const content = await buffer(this.stream(blob, { start: 0, end: size }, signal));
    this.#checkDigest(digest, digestOf(content));
    return content;
  }

  /**
   * Yields the bytes from `start` (inclusive) to `end` (exclusive) of a blob. The generator gives exactly these bytes or fails, but it does
   * not verify a digest. An interrupted transfer resumes at the same byte, with back-off and a limit of tries.
   */
  stream(
    blob: BlobReference,
    range: { start: number; end: number },
    signal: AbortSignal,
  ): AsyncGenerator<Buffer, void, undefined> {
    requireContent(blob, this.name);
    return blobStream(this.#session, blob, range, signal);
  }

  /**
   * Returns whether the registry sends a part of a blob on request. Some registries send the whole blob instead, and {@link stream} then
   * receives and drops all bytes before `start`.
   */
  async servesRanges({ digest }: BlobReference, signal: AbortSignal): Promise<boolean> {
    const headers = { range: 'bytes=0-0', 'accept-encoding': 'identity' };
    const response = await this.#session.ask(
      { method: 'GET', at: `blobs/${digest}`, reference: digest, headers },
      signal,
    );
    await response.body.dump();
    return response.status === PARTIAL;
  }

  /** Returns whether the registry has a blob that is to be pushed. */
  async has(digest: string, signal: AbortSignal): Promise<boolean> {
    const at = `blobs/${digest}`;
    const response = await this.#session.ask(
      { method: 'HEAD', at, reference: digest, accept: [404], rights: 'pull,push' },
      signal,
    );
    await response.body.dump();
    return response.status !== 404;
  }

  /** Uploads a blob in one request, unless the registry already has it. */
  async upload(blob: UploadBlob, signal: AbortSignal): Promise<void> {
    if (await this.has(blob.digest, signal)) {
      return;
    }
    await uploadBlob(this.#session, blob, signal);
  }

  /** Writes a manifest under a tag and returns the manifest's digest. */
  async putManifest(tag: string, mediaType: string, bytes: Buffer, signal: AbortSignal): Promise<string> {
    const response = await this.#session.ask(
      {
        method: 'PUT',
        at: `manifests/${tag}`,
        reference: tag,
        headers: { 'content-type': mediaType },
        body: () => bytes,
        rights: 'pull,push',
      },
      signal,
    );
    await response.body.dump();
    const digest = digestOf(bytes);
    const theirs = digestHeader(response);
    if (theirs !== undefined && theirs !== digest) {
      throw new ReasonedError(
        'DigestMismatch',
        `The registry stored ${this.#session.named(tag)} with the digest ${theirs} instead of ${digest}`,
      );
    }
    return digest;
  }

  /**
   * Removes a manifest and every tag that names it. The blobs of the manifest stay until the registry's own garbage collection. Returns
   * false if the registry does not allow removals. Otherwise returns true, even if the manifest was already missing.
   */
  async removeManifest(digest: string, signal: AbortSignal): Promise<boolean> {
    const response = await this.#session.ask(
      {
        method: 'DELETE',
        at: `manifests/${digest}`,
        reference: digest,
        rights: 'pull,delete',
        accept: [404, NOT_ALLOWED],
      },
      signal,
    );
    await response.body.dump();
    return response.status !== NOT_ALLOWED;
  }

  async #manifest(reference: string, signal: AbortSignal): Promise<Fetched> {
    return await retrying(async () => {
      const response = await this.#session.once(
        { method: 'GET', at: `manifests/${reference}`, reference, headers: { accept: MANIFEST_ACCEPT } },
        signal,
      );
      try {
        return await this.#read(response, reference, signal);
      } catch (error) {
        throw invalidJson(error, `The manifest of ${this.#session.named(reference)}`, 'ImageManifestInvalid');
      }
    }, signal);
  }

  async #read(response: Response, reference: string, signal: AbortSignal): Promise<Fetched> {
    const what = this.#session.named(reference);
    const { bytes, parse } = await readBody(response, MANIFEST_LIMITS, what, signal);
    const digest = digestOf(bytes);
    this.#checkDigest(reference, digest);
    const said = digestHeader(response);
    if (said !== undefined && said !== digest) {
      throw new ReasonedError(
        'DigestMismatch',
        `The manifest of ${what} has the digest ${digest}, but its registry states ${said}`,
      );
    }
    return { digest, document: readManifest(parse(), String(response.headers['content-type'] ?? ''), what) };
  }

  /**
   * Compares `digest`, the digest of some content, with `reference`. Does nothing if `reference` is a tag. @throws ReasonedError
   * `DigestMismatch` when `reference` is another digest.
   */
  #checkDigest(reference: string, digest: string): void {
    if (!reference.includes(':') || reference === digest) {
      return;
    }
    throw new ReasonedError(
      'DigestMismatch',
      `The content of ${this.#session.named(reference)} has the wrong digest ${digest}`,
    );
  }
}

function digestHeader({ headers }: Response): string | undefined {
  const digest = headers['docker-content-digest'];
  return typeof digest === 'string' && isSha256(digest) ? digest : undefined;
}

interface UploadBlob {
  digest: string;
  size: number;
  /** Returns the content. The client calls this function once for each attempt. */
  content: () => Readable | Buffer;
}

/**
 * Sends the blob in one request, because every registry accepts this form. An interrupted request loses little, because Berth's largest
 * blobs are compressed chunks of 64 MiB. The registry verifies the digest.
 *
 * @throws ReasonedError when no try succeeds.
 */
async function uploadBlob(session: RegistrySession, blob: UploadBlob, signal: AbortSignal): Promise<void> {
  if (!isSha256(blob.digest)) {
    throw new TypeError(`${blob.digest} is not a sha256 digest`);
  }
  await retrying(async () => await put(session, blob, await begin(session, blob, signal), signal), signal);
}

/** Starts an upload. Returns the URL to which the client must send the blob. The URL is valid for one request. */
async function begin(session: RegistrySession, blob: UploadBlob, signal: AbortSignal): Promise<URL> {
  const response = await session.once(
    { method: 'POST', at: 'blobs/uploads/', reference: blob.digest, rights: 'pull,push' },
    signal,
  );
  await response.body.dump();
  return uploadLocation(session, response);
}

async function put(
  session: RegistrySession,
  blob: UploadBlob,
  location: URL,
  signal: AbortSignal,
): Promise<void> {
  const at = new URL(location);
  // The parameter `digest` is appended as text, so that the existing query stays unchanged. The registry might have signed this query.
  at.search += `${at.search === '' ? '?' : '&'}digest=${encodeURIComponent(blob.digest)}`;
  const headers = { 'content-type': 'application/octet-stream', 'content-length': String(blob.size) };
  const response = await session.once(
    { method: 'PUT', at, reference: blob.digest, headers, body: blob.content, rights: 'pull,push' },
    signal,
  );
  await response.body.dump();
}

function uploadLocation(session: RegistrySession, { headers, url }: Response): URL {
  const { location } = headers;
  if (typeof location !== 'string' || !URL.canParse(location, url.href)) {
    throw new ReasonedError(
      'ImageFetchFailed',
      `${session.name}: ${url.host} returned no usable URL for the upload`,
    );
  }
  const next = new URL(location, url);
  checkNoDowngrade(url, next, session.name);
  return next;
}

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
async function* blobStream(
  session: RegistrySession,
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
  session: RegistrySession,
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
