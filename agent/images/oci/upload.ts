/** Blobs to a registry. */
import { retrying } from './failures.ts';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Session } from './session.ts';
import { checkNoDowngrade, type Response } from './transport.ts';
import type { UploadBlob } from './types.ts';

/**
 * Sends the blob in one request, which every registry takes. No blob of ours is larger than a compressed chunk of 64 MiB,
 * so little is lost when a request breaks off. The registry verifies the digest.
 *
 * @throws ReasonedError
 */
export async function uploadBlob(session: Session, blob: UploadBlob, signal: AbortSignal): Promise<void> {
  if (!isSha256(blob.digest)) {
    throw new TypeError(`${blob.digest} is no sha256 digest`);
  }
  await retrying(async () => await put(session, blob, await begin(session, blob, signal), signal), signal);
}

/** The address for the blob, good for one request. */
async function begin(session: Session, blob: UploadBlob, signal: AbortSignal): Promise<URL> {
  const response = await session.once(
    { method: 'POST', at: 'blobs/uploads/', reference: blob.digest, writes: true },
    signal,
  );
  await response.body.dump();
  return uploadLocation(session, response);
}

async function put(session: Session, blob: UploadBlob, location: URL, signal: AbortSignal): Promise<void> {
  const at = new URL(location);
  // Appended as text: what is there may be signed as it is written.
  at.search += `${at.search === '' ? '?' : '&'}digest=${encodeURIComponent(blob.digest)}`;
  const headers = { 'content-type': 'application/octet-stream', 'content-length': String(blob.size) };
  const response = await session.once(
    { method: 'PUT', at, reference: blob.digest, headers, body: blob.content, writes: true },
    signal,
  );
  await response.body.dump();
}

function uploadLocation(session: Session, { headers, url }: Response): URL {
  const { location } = headers;
  if (typeof location !== 'string' || !URL.canParse(location, url.href)) {
    throw new ReasonedError(
      'ImageFetchFailed',
      `${session.name}: ${url.host} does not say where the upload goes on`,
    );
  }
  const next = new URL(location, url);
  checkNoDowngrade(url, next, session.name);
  return next;
}
