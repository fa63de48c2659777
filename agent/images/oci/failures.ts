/** Why an image cannot be had, which failures another try may mend, and how those tries are made. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Backoff } from '../../../base/backoff.ts';
import { pause } from '../../../base/time.ts';
import { codeOf } from '../../../base/errors.ts';

/** The waits between six tries add up to 8 s: a server that restarts is back by then. What takes longer, the caller begins anew later. */
const ATTEMPTS = 6;
const FIRST_MILLISECONDS = 250;
const CAP_MILLISECONDS = 4_000;
const JITTER = 0.2;
/** The longest `Retry-After` that is waited for; a longer one is told to the caller. */
const RETRY_AFTER_LIMIT_MILLISECONDS = 30_000;
/** A transfer that gets this far begins to count tries anew; less would let a server keep one going byte by byte. */
const PROGRESS_BYTES = 1024 ** 2;

const TRANSIENT_STATUS = new Set([408, 425, 429, 500, 502, 503, 504]);

/** Codes of failures of the network, which say nothing of the request. */
const TRANSIENT_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ECONNABORTED',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENETDOWN',
  'EAI_AGAIN',
  'UND_ERR_SOCKET',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_RES_CONTENT_LENGTH_MISMATCH',
]);

/** A failure that another try may mend, with what it is when none does. */
export class TransientError extends Error {
  override readonly name = 'TransientError';
  readonly final: ReasonedError;
  readonly retryAfterMilliseconds: number | undefined;

  constructor(final: ReasonedError, retryAfterMilliseconds?: number) {
    super(final.message, { cause: final });
    this.final = final;
    this.retryAfterMilliseconds = retryAfterMilliseconds;
  }
}

export function isTransientStatus(status: number): boolean {
  return TRANSIENT_STATUS.has(status);
}

/**
 * What a request ended with, as a ReasonedError or a TransientError; `what` begins its message. An aborted request ends with
 * the reason of its signal.
 */
export function networkError(error: unknown, what: string, signal?: AbortSignal): unknown {
  if (signal?.aborted === true) {
    return signal.reason;
  }
  if (error instanceof TransientError) {
    return error;
  }
  const known = [error, causeOf(error)].find((candidate) => candidate instanceof ReasonedError);
  if (known !== undefined) {
    return known;
  }
  const code = firstCodeOf(error) ?? firstCodeOf(causeOf(error)) ?? '';
  const hint = isCertificateError(code) ? `: its certificate is not trusted here (${code})` : '';
  const final = new ReasonedError('ImageFetchFailed', `${what}: ${textOf(error, code)}${hint}`, {
    cause: error,
  });
  return TRANSIENT_CODES.has(code) ? new TransientError(final) : final;
}

/** The tries of one piece of work. */
export class Attempts {
  readonly #backoff = new Backoff({
    firstMilliseconds: FIRST_MILLISECONDS,
    capMilliseconds: CAP_MILLISECONDS,
    jitter: JITTER,
  });
  #failed = 0;
  #bytes = 0;

  /** Something was got: enough of it, and the tries count anew. */
  progress(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes < PROGRESS_BYTES) {
      return;
    }
    this.#bytes = 0;
    this.#failed = 0;
    this.#backoff.reset();
  }

  /** Waits until it is time for another try; throws when there is none, or when another would bring nothing. */
  async failed(error: unknown, signal: AbortSignal): Promise<void> {
    if (!(error instanceof TransientError)) {
      throw error;
    }
    this.#failed += 1;
    if (this.#failed >= ATTEMPTS) {
      throw error.final;
    }
    const asked = error.retryAfterMilliseconds ?? 0;
    if (asked > RETRY_AFTER_LIMIT_MILLISECONDS) {
      throw error.final;
    }
    await pause(Math.max(asked, this.#backoff.next()), signal);
  }
}

/** Does it, again if need be. */
export async function retrying<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
  const attempts = new Attempts();
  for (;;) {
    try {
      return await work();
    } catch (error) {
      await attempts.failed(error, signal);
    }
  }
}

/** `Retry-After`, in seconds or as a date; undefined when there is none that can be read. */
export function retryAfterMilliseconds(header: string | string[] | undefined): number | undefined {
  if (typeof header !== 'string') {
    return undefined;
  }
  if (/^\d{1,9}$/.test(header)) {
    return Number(header) * 1000;
  }
  const date = Date.parse(header);
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}

/** An AggregateError, of all addresses of a name, says nothing itself. */
function textOf(error: unknown, code: string): string {
  return error instanceof Error && error.message !== '' ? error.message : code || String(error);
}

function isCertificateError(code: string): boolean {
  return /CERT|SIGNATURE|ISSUER|^ERR_TLS/.test(code);
}

function causeOf(error: unknown): unknown {
  return error instanceof Error ? error.cause : undefined;
}

/** The code of the first of all addresses that were tried. */
function firstCodeOf(error: unknown): string | undefined {
  if (error instanceof AggregateError && error.errors.length > 0) {
    return firstCodeOf(error.errors[0]);
  }
  return codeOf(error);
}
