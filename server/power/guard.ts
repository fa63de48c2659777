/**
 * Refuses requests that must not act, before anybody asks who sent them. A GET of the power API can switch off a server, and many programs
 * send a GET, or something like it, that no person has asked for.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { HttpError } from '../../kube/serving/httperror.ts';

/** Headers with which browsers and proxies mark requests that they send in advance. */
const PURPOSES = ['sec-purpose', 'purpose', 'x-purpose', 'x-moz'] as const;
const IN_ADVANCE = /prefetch|prerender|preview/i;

/**
 * Refuses a request that a program sends in advance, with 403: it is refused for good, and the same request of a person has no such header.
 * Also refuses a request that a proxy took from the early data of TLS (RFC 8470), because somebody else can send such data again.
 *
 * @throws HttpError 403 or 425.
 */
export function refuseUnasked(headers: IncomingHttpHeaders): void {
  if (PURPOSES.some((name) => IN_ADVANCE.test(String(headers[name] ?? '')))) {
    throw new HttpError(403, 'The power API does not answer requests that are sent in advance (prefetch)');
  }
  if (headers['early-data'] !== undefined) {
    throw new HttpError(425, 'The power API does not answer requests from the early data of TLS');
  }
}
