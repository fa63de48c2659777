import { undefinedIf } from '../base/errors.ts';

/** Error when the API server refused a request, or sent an answer that could not be understood. */
export class ApiError extends Error {
  /** HTTP status code. */
  readonly status: number;
  /** Machine-readable `reason` of the returned Status, for example `NotFound`; empty when there was no reason. */
  readonly reason: string;
  /** `details` of the returned Status: the object and the causes. */
  readonly details: unknown;
  /** Wait before the next attempt, in milliseconds, if the server requested one. */
  readonly retryAfterMilliseconds: number | undefined;

  constructor(
    message: string,
    o: { status: number; reason: string; details?: unknown; retryAfterMilliseconds?: number | undefined },
  ) {
    super(message);
    this.name = 'ApiError';
    this.status = o.status;
    this.reason = o.reason;
    this.details = o.details;
    this.retryAfterMilliseconds = o.retryAfterMilliseconds;
  }
}

/** Statuses below 500 after which another attempt may have another answer: time over, version compacted, too many requests. */
const TEMPORARY: ReadonlySet<number> = new Set([408, 410, 429]);

/** Error that another attempt cannot fix. It is counted and logged, but not retried. */
export class TerminalError extends Error {
  override readonly name = 'TerminalError';
}

/** Error when this process held back a write, because it no longer holds the lease under which it may write. */
export class FencedError extends Error {
  override readonly name = 'FencedError';
}

/** Error when the API server did not answer in time. If the request was a write, the server may still have done it. */
export class DeadlineError extends Error {
  override readonly name = 'DeadlineError';
}

export function isNotFound(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 404;
}

/** Resolves with the object, or with undefined when the object does not exist. */
export async function unlessMissing<T>(asked: Promise<T>): Promise<T | undefined> {
  return await undefinedIf(isNotFound, asked);
}

/** Returns whether an error reports a stale resourceVersion or uid. "Object exists already" does not count, although it also has 409. */
export function isConflict(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 409 && error.reason !== 'AlreadyExists';
}

export function isAlreadyExists(error: unknown): error is ApiError {
  return error instanceof ApiError && error.reason === 'AlreadyExists';
}

export function isInvalid(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 422;
}

export function isForbidden(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 403;
}

/**
 * Returns whether admission refused an object, for example for quota or Pod Security. Refusals by the authorizer do not count: the caller
 * lacks a right, or the server has just started and has no roles yet. Only those refusals name the user right after "is forbidden:".
 */
export function isRefused(error: unknown): error is ApiError {
  return isForbidden(error) && !/^[a-z./]+ is forbidden: User "/.test(error.message);
}

/** Returns whether the namespace is being deleted, so that nothing can be created in it. */
export function isNamespaceTerminating(error: unknown): boolean {
  const details = isForbidden(error) ? (error.details as { causes?: { reason?: string }[] } | undefined) : {};
  return details?.causes?.some(({ reason }) => reason === 'NamespaceTerminating') === true;
}

/** Returns whether the server refused because the requested resourceVersion was compacted. The caller must list again. */
export function isGone(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 410;
}

/** Returns whether the server refused the request for good, so that another attempt would get the same answer. */
export function isRefusal(error: unknown): error is ApiError {
  return (
    error instanceof ApiError && error.status >= 400 && error.status < 500 && !TEMPORARY.has(error.status)
  );
}

interface StatusLike {
  code?: number;
  message?: string;
  reason?: string;
  details?: unknown;
}

/**
 * Turns a `Status` object into an ApiError. The Status came with an HTTP error or in a watch's ERROR event. If the body is no Status, for
 * example HTML of a proxy, the message contains its first 512 characters.
 */
export function apiErrorFrom(body: unknown, status?: number, retryAfterMilliseconds?: number): ApiError {
  const isObject = typeof body === 'object' && body !== null;
  const answer: StatusLike = isObject ? body : {};
  const code = status ?? answer.code ?? 500;
  const text = typeof body === 'string' && body !== '' ? body.slice(0, 512) : `HTTP status ${code}`;
  return new ApiError(answer.message ?? text, {
    status: code,
    reason: answer.reason ?? '',
    details: answer.details,
    retryAfterMilliseconds,
  });
}
