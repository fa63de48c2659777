/** The API server refused a request, or answered what cannot be understood. */
export class ApiError extends Error {
  /** HTTP status code. */
  readonly status: number;
  /** The machine-readable `reason` of the answered Status, such as `NotFound`; empty when there was none. */
  readonly reason: string;
  /** `details` of the answered Status: which object, which causes. */
  readonly details: unknown;
  /** What the server asked to wait before the next try, in milliseconds. */
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

/** An error that trying again cannot mend: counted, logged, and not retried. */
export class TerminalError extends Error {
  override readonly name = 'TerminalError';
}

/** A write was refused on this side: the process no longer holds the lease under which it may write. */
export class FencedError extends Error {
  override readonly name = 'FencedError';
}

/** The API server gave no answer in time. A write that ends so may have been done. */
export class DeadlineError extends Error {
  override readonly name = 'DeadlineError';
}

export function isNotFound(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 404;
}

/** What was asked for, or undefined when there is no such object. */
export async function unlessMissing<T>(asked: Promise<T>): Promise<T | undefined> {
  try {
    return await asked;
  } catch (error) {
    if (isNotFound(error)) {
      return undefined;
    }
    throw error;
  }
}

/** Both a stale resourceVersion or uid and an object that exists already are 409; this is the former. */
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
 * Quota, Pod Security or another admission said no to an object, which its answer names. The authorizer's no comes before
 * there is an object: the caller lacks a right, or the server has begun just now, knows no role yet and denies everybody.
 */
export function isRefused(error: unknown): error is ApiError {
  return isForbidden(error) && !/^[a-z./]+ is forbidden: User "/.test(error.message);
}

/** Nothing can be created in a namespace that is being deleted. */
export function isNamespaceTerminating(error: unknown): boolean {
  const details = isForbidden(error) ? (error.details as { causes?: { reason?: string }[] } | undefined) : {};
  return details?.causes?.some(({ reason }) => reason === 'NamespaceTerminating') === true;
}

/** The wanted resourceVersion has been compacted away: list again. */
export function isGone(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 410;
}

interface StatusLike {
  code?: number;
  message?: string;
  reason?: string;
  details?: unknown;
}

/**
 * Turns a `Status` object, as answered with an HTTP error or sent in a watch's ERROR event, into an ApiError.
 * A body that is no Status (a proxy's HTML, say) becomes part of the message, cut to 512 characters.
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
