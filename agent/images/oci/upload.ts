/** Uploads blobs to registries (distribution specification 1.1). */
import type { Readable } from 'node:stream';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Session } from './client.ts';
import { retrying } from './failures.ts';
import { checkNoDowngrade, type Response } from './transport.ts';

export interface UploadBlob {
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
export async function uploadBlob(session: Session, blob: UploadBlob, signal: AbortSignal): Promise<void> {
  if (!isSha256(blob.digest)) {
    throw new TypeError(`${blob.digest} is not a sha256 digest`);
  }
  await retrying(async () => await put(session, blob, await begin(session, blob, signal), signal), signal);
}

/** Starts an upload. Returns the URL to which the client must send the blob. The URL is valid for one request. */
async function begin(session: Session, blob: UploadBlob, signal: AbortSignal): Promise<URL> {
  const response = await session.once(
    { method: 'POST', at: 'blobs/uploads/', reference: blob.digest, rights: 'pull,push' },
    signal,
  );
  await response.body.dump();
  return uploadLocation(session, response);
}

async function put(session: Session, blob: UploadBlob, location: URL, signal: AbortSignal): Promise<void> {
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

function uploadLocation(session: Session, { headers, url }: Response): URL {
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
