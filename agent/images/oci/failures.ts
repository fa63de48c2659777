/** Classifies failures of image fetches, and repeats work that can succeed on another try. */
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { AddressError } from '../../../base/addresses.ts';
import { Backoff } from '../../../base/backoff.ts';
import { pause } from '../../../base/time.ts';
import { codeOf } from '../../../base/errors.ts';

/**
 * Number of tries of one request. The waits between six tries add up to 8 s. A server that restarts usually returns within this time. If
 * the failure lasts longer, the caller tries again later.
 */
const ATTEMPTS = 6;
const FIRST_MILLISECONDS = 250;
const CAP_MILLISECONDS = 4_000;
const JITTER = 0.2;
/**
 * Longest wait, in milliseconds, that is accepted when a server requests a wait with `Retry-After`. If the server requests a longer wait,
 * the caller receives the failure at once. The failure carries the wait, and the next attempt keeps it.
 */
const RETRY_AFTER_LIMIT_MILLISECONDS = 30_000;
/**
 * Number of received bytes after which the count of failed tries restarts. The number is large, because a server could otherwise prolong a
 * transfer forever with a few bytes at each try.
 */
const PROGRESS_BYTES = 1024 ** 2;

const TRANSIENT_STATUS = new Set([408, 425, 429, 500, 502, 503, 504]);

/** Error codes of network failures that do not depend on the request. */
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
  'PROXY_UNREACHABLE',
  'PROXY_FAILED',
]);

const NO_CONNECTION = 'there is no connection to the server';
const LOST = 'the connection to the server was lost';
const LATE = 'the server does not answer in time';
/**
 * Causes of network failures in messages to users, by error code. The messages of the system are only logged, because they contain addresses
 * that only this host knows. Refused and unanswered connections have the same text, so that users cannot search the network for open ports.
 */
const CAUSES: Readonly<Record<string, string>> = {
  ENOTFOUND: 'the name of the server was not found',
  EAI_AGAIN: 'the name of the server cannot be looked up at present',
  ECONNREFUSED: NO_CONNECTION,
  EHOSTUNREACH: NO_CONNECTION,
  ENETUNREACH: NO_CONNECTION,
  ENETDOWN: NO_CONNECTION,
  ETIMEDOUT: NO_CONNECTION,
  EACCES: NO_CONNECTION,
  EPERM: NO_CONNECTION,
  EADDRNOTAVAIL: NO_CONNECTION,
  UND_ERR_CONNECT_TIMEOUT: NO_CONNECTION,
  // The answer is no TLS, for example that of a registry which speaks HTTP.
  ERR_SSL_WRONG_VERSION_NUMBER: 'the server answers without TLS',
  ECONNRESET: LOST,
  ECONNABORTED: LOST,
  EPIPE: LOST,
  UND_ERR_SOCKET: LOST,
  UND_ERR_HEADERS_TIMEOUT: LATE,
  UND_ERR_BODY_TIMEOUT: LATE,
  PROXY_UNREACHABLE: 'the proxy of this host does not answer',
  PROXY_REFUSED: 'the proxy of this host refuses the connection to the server',
  PROXY_FAILED: 'the proxy of this host cannot reach the server',
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: 'the server sent fewer or more bytes than it announced',
};

/** A failure after which another try can succeed. `final` is the error that the caller gets when no try succeeds. */
export class TransientError extends Error {
  override readonly name = 'TransientError';
  readonly final: ReasonedError;
  readonly retryAfterMilliseconds: number | undefined;

  constructor(final: ReasonedError, retryAfterMilliseconds?: number) {
    super(final.message, { cause: final });
    this.final =
      retryAfterMilliseconds === undefined
        ? final
        : new ReasonedError(final.reason, final.message, { cause: final, retryAfterMilliseconds });
    this.retryAfterMilliseconds = retryAfterMilliseconds;
  }
}

export function isTransientStatus(status: number): boolean {
  return TRANSIENT_STATUS.has(status);
}

/**
 * Converts the failure of a request to a ReasonedError or TransientError. `what` is the beginning of the error's message. The message shows
 * nothing of the network of this host. The error's cause shows it, for the log. If the request was aborted, the function returns the reason
 * of its signal.
 */
export function networkError(error: unknown, what: string, signal?: AbortSignal): unknown {
  if (signal?.aborted === true) {
    return signal.reason;
  }
  if (error instanceof TransientError) {
    return error;
  }
  const known = [error, causeOf(error)].find(
    (candidate) => candidate instanceof ReasonedError || candidate instanceof AddressError,
  );
  if (known !== undefined) {
    return known instanceof AddressError ? addressRefusal(known) : known;
  }
  const code = firstCodeOf(error) ?? firstCodeOf(causeOf(error)) ?? '';
  const final = new ReasonedError('ImageFetchFailed', `${what}: ${describeCause(code)}`, { cause: error });
  return TRANSIENT_CODES.has(code) ? new TransientError(final) : final;
}

/**
 * Returns the error for a server whose address the rules refuse. Its message is for users. It does not tell to which address a name leads,
 * nor why the address is refused, because both would tell about the network of this host.
 */
function addressRefusal(cause: AddressError): ReasonedError {
  return new ReasonedError(
    'ImageFetchFailed',
    `The address of ${cause.hostname} is not allowed for images; an administrator can name the server in images.registries of the agent`,
    { cause },
  );
}

/** Counts the tries of one request or transfer, and waits between the tries. Positions are in bytes from the content's beginning. */
export class Attempts {
  readonly #backoff = new Backoff({
    firstMilliseconds: FIRST_MILLISECONDS,
    capMilliseconds: CAP_MILLISECONDS,
    jitter: JITTER,
  });
  #failed = 0;
  /** Position that the transfer had reached when the count of failed tries began or last restarted. */
  #countedFrom: number;

  /** `start` is the position at which the transfer begins. */
  constructor(start = 0) {
    this.#countedFrom = start;
  }

  /**
   * Records that the transfer has reached a position. Each time the transfer is 1 MiB further, the count of failed tries restarts. If a
   * transfer begins again, bytes that it receives for the second time do not count. Otherwise a server that always breaks off at the same
   * position could prolong the transfer forever.
   */
  reached(position: number): void {
    if (position - this.#countedFrom < PROGRESS_BYTES) {
      return;
    }
    this.#countedFrom = position;
    this.#failed = 0;
    this.#backoff.reset();
  }

  /**
   * Counts a failed try, and waits until the next try may begin.
   *
   * @throws Error when another try cannot help, when no tries remain, or when the server requests too long a wait.
   */
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

/** Runs `work`, and runs it again after transient failures. @throws Error when a failure is not transient or no tries remain. */
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

/**
 * Converts a `Retry-After` header (seconds or a date) to milliseconds. Returns undefined when the header is missing or unreadable. If there
 * are several headers, the first counts.
 */
export function retryAfterMilliseconds(header: string | string[] | undefined): number | undefined {
  const text = (Array.isArray(header) ? header[0] : header)?.trim() ?? '';
  if (/^\d{1,15}(\.\d{0,9})?$/.test(text)) {
    return Number(text) * 1000;
  }
  // Date.parse also reads numbers as years. A date of HTTP begins with the name of a day.
  const date = /^[A-Za-z]/.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}

function describeCause(code: string): string {
  if (isCertificateError(code)) {
    return `this host does not trust the certificate of the server (${code})`;
  }
  return CAUSES[code] ?? (code === '' ? 'the request failed' : `the request failed (${code})`);
}

function isCertificateError(code: string): boolean {
  return /CERT|SIGNATURE|ISSUER|^ERR_TLS/.test(code);
}

function causeOf(error: unknown): unknown {
  return error instanceof Error ? error.cause : undefined;
}

/** Returns the code of an error. An AggregateError has one error for each address, and the function returns the code of the first one. */
function firstCodeOf(error: unknown): string | undefined {
  if (error instanceof AggregateError && error.errors.length > 0) {
    return firstCodeOf(error.errors[0]);
  }
  return codeOf(error);
}

/**
 * Least average rate of one transfer in bytes per second. A pull from a registry has four transfers at once, so a whole image needs 64 KiB
 * per second. Each usable line to a host is far faster: at this rate, an image of 20 GiB would take four days.
 */
const LEAST_BYTES_PER_SECOND = 16 * 1024;
/** Time in milliseconds over which the rate is averaged. It is long enough for a server that restarts or is busy for some minutes. */
const WINDOW_MILLISECONDS = 5 * 60_000;

/** Measures one transfer, including its repeated attempts. Only the time counts for which the host waits for bytes. */
export class LeastRate {
  readonly #what: string;
  readonly #clock: () => number;
  readonly #reason: Reason;
  #bytes = 0;
  #waitedMilliseconds = 0;

  /** `what` is the source in messages. `clock` returns milliseconds like `performance.now()`. `reason` is the reason of the error. */
  constructor(what: string, clock = () => performance.now(), reason: Reason = 'TooSlow') {
    this.#what = what;
    this.#clock = clock;
    this.#reason = reason;
  }

  /** Yields the pieces of a body. @throws ReasonedError `reason` when the source sends too slowly; the error of the body. */
  async *over(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void, undefined> {
    let since = this.#clock();
    try {
      for await (const chunk of body) {
        this.#count(chunk.length, since);
        // The time that the receiver takes for a piece does not count, because the source cannot shorten it.
        yield chunk;
        since = this.#clock();
      }
    } catch (error) {
      // Pauses before an interruption count too. Otherwise a source could send a little between long pauses.
      this.#count(0, since);
      throw error;
    }
  }

  #count(bytes: number, since: number): void {
    this.#bytes += bytes;
    this.#waitedMilliseconds += this.#clock() - since;
    if (this.#waitedMilliseconds < WINDOW_MILLISECONDS) {
      return;
    }
    const rate = (this.#bytes * 1000) / this.#waitedMilliseconds;
    this.#bytes = 0;
    this.#waitedMilliseconds = 0;
    if (rate < LEAST_BYTES_PER_SECOND) {
      throw new ReasonedError(
        this.#reason,
        `${this.#what} sent ${Math.floor(rate)} bytes per second for 5 minutes, and the least rate is ${LEAST_BYTES_PER_SECOND}`,
      );
    }
  }
}
