import { codeOf, undefinedIf } from '../base/errors.ts';

/** Error when the API server refused a request, or when this process could not understand the server's answer. */
export class ApiError extends Error {
  /** HTTP status code. */
  readonly status: number;
  /** Machine-readable `reason` of the returned Status, for example `NotFound`. It is empty if the answer had none. */
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

/** Status codes below 500 after which another attempt can succeed: timeout (408), compacted version (410), and too many requests (429). */
const TEMPORARY: ReadonlySet<number> = new Set([408, 410, 429]);

/** Pattern of the error codes of a failed connection. */
const CONNECTION_ERRORS = /^(ECONN|ENOTFOUND|EAI_|EHOST|ENET|EPIPE|ETIMEDOUT|UND_ERR_)/;

/** Error that another attempt cannot fix. It is counted and logged, but not retried. */
export class TerminalError extends Error {
  override readonly name = 'TerminalError';
}

/** Error when this process did not send a request that changes an object, because the process no longer holds the lease. */
export class FencedError extends Error {
  override readonly name = 'FencedError';
}

/** Error when the API server did not answer in time. If the request changes an object, the server might have made the change even so. */
export class DeadlineError extends Error {
  override readonly name = 'DeadlineError';
}

/**
 * Error when a credential plug-in or a token file gave no token. The message contains the name of the plug-in and its last output, or the
 * name of the file.
 */
export class CredentialError extends Error {
  override readonly name = 'CredentialError';
  /** Exit code of the plug-in. It is undefined if there is no plug-in, or if it was killed, was not started, or ended with exit code 0. */
  readonly exitCode: number | undefined;

  constructor(message: string, exitCode?: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

export function isNotFound(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 404;
}

/** Resolves with the object, or with undefined when the object does not exist. */
export async function unlessMissing<T>(asked: Promise<T>): Promise<T | undefined> {
  return await undefinedIf(isNotFound, asked);
}

/**
 * Returns whether an error reports a stale resourceVersion or uid. The result is false for "object exists already", although this error
 * also has status 409.
 */
export function isConflict(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 409 && error.reason !== 'AlreadyExists';
}

export function isAlreadyExists(error: unknown): error is ApiError {
  return error instanceof ApiError && error.reason === 'AlreadyExists';
}

export function isInvalid(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 422;
}

/** Returns whether the API server did not accept the caller's credentials, for example because the certificate has expired. */
export function isUnauthorized(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 401;
}

export function isForbidden(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 403;
}

/** Beginning of the message when an admission webhook denied a request. The status is 400, unless the webhook chose another one. */
const WEBHOOK_DENIAL = /^admission webhook "[^"]*" denied the request/;

/**
 * Returns whether admission refused an object, for example because of a quota, Pod Security or a webhook. The result is false if the
 * authorizer refused the request. The authorizer refuses if the caller lacks a right, or if the API server has just started and knows no
 * roles yet. Only refusals of the authorizer have the user's name directly after "is forbidden:".
 */
export function isRefused(error: unknown): error is ApiError {
  return isForbidden(error)
    ? !/^[a-z\d./-]+( "[^"]*")? is forbidden: User "/.test(error.message)
    : error instanceof ApiError && WEBHOOK_DENIAL.test(error.message);
}

/** Beginning of the message when the API server could not call an admission webhook with the failurePolicy Fail. The status is 500. */
const WEBHOOK_FAILURE = /^Internal error occurred: failed calling webhook "/;

/** Returns whether the API server did not accept an object, because it could not call an admission webhook. */
export function isWebhookFailure(error: unknown): boolean {
  return error instanceof ApiError && WEBHOOK_FAILURE.test(error.message);
}

/**
 * Returns whether a rule of the cluster refuses an object: admission refused it, or it is invalid. A ValidatingAdmissionPolicy refuses with
 * the status of an invalid object.
 */
export function isRefusedByRule(error: unknown): error is ApiError {
  return isRefused(error) || isInvalid(error);
}

/**
 * Returns whether the API server did not accept an object, and will not accept it before somebody changes the object or the cluster.
 * Either a rule refuses the object, or an admission webhook cannot be called. The second case ({@link isWebhookFailure}) can end by itself
 * within seconds, so it must not count as a final answer.
 */
export function isObjectRefused(error: unknown): error is ApiError {
  return isRefusedByRule(error) || isWebhookFailure(error);
}

/** Returns whether a dry run was refused because an admission webhook has side effects and supports no dry run. */
export function isUnsupportedDryRun(error: unknown): boolean {
  return error instanceof ApiError && error.message.endsWith('does not support dry run');
}

/** Returns whether the API server refused an object because its namespace is being deleted. */
export function isNamespaceTerminating(error: unknown): boolean {
  const details = isForbidden(error) ? (error.details as { causes?: { reason?: string }[] } | undefined) : {};
  return details?.causes?.some(({ reason }) => reason === 'NamespaceTerminating') === true;
}

/** Returns whether the server refused because the requested resourceVersion was compacted. The caller must list again. */
export function isGone(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 410;
}

/** Returns whether the API server refused the request and would refuse it again. */
export function isRefusal(error: unknown): error is ApiError {
  return (
    error instanceof ApiError && error.status >= 400 && error.status < 500 && !TEMPORARY.has(error.status)
  );
}

/** Returns whether an error shows a mistake in the program. Such errors are counted in `controller_runtime_reconcile_panics_total`. */
export function isProgrammingError(error: unknown): boolean {
  return error instanceof TypeError || error instanceof ReferenceError || error instanceof RangeError;
}

/** Returns whether the API server could not be reached, or did not answer in time. */
export function isUnreachable(error: unknown): boolean {
  return error instanceof DeadlineError || CONNECTION_ERRORS.test(codeOf(error) ?? '');
}

interface StatusLike {
  code?: number;
  message?: string;
  reason?: string;
  details?: unknown;
}

/**
 * Turns a `Status` object into an ApiError. The Status comes from an answer with an HTTP error, or from an ERROR event of a watch. If the
 * body is not a Status (for example, a page of a proxy), the message contains the body's first 512 characters.
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
