/**
 * Decides whether an error of a request is final, and repeats a request until then. If earlier requests of the caller succeeded, a refusal
 * can be temporary, and a credential plug-in can fail for a moment.
 */
import { CredentialError, isRefusal } from './errors.ts';
import { Backoff } from '../base/backoff.ts';
import { pause } from '../base/time.ts';

/**
 * Time in milliseconds for which an error counts as temporary if its cause is the token or a missing right. An API server that has just
 * started knows no roles for a few seconds, and reads the public keys of an identity provider only every 10 s. Until it has both, it
 * refuses valid callers. A laptop that wakes has no network for a few seconds, so its credential plug-in cannot renew the token.
 */
const LIMIT_MILLISECONDS = 20_000;

export class Patience {
  #refusedSince: number | undefined;

  /** Forgets earlier refusals. Call this function when the API server has accepted the token again. */
  reset(): void {
    this.#refusedSince = undefined;
  }

  /**
   * Returns whether another attempt is useless. A missing token, a refused token (401) and a missing right (403) can be temporary. For
   * these, the result is true only after 20 s. After any other refusal, the result is true at once. After any other error, it is false.
   */
  endsWith(error: unknown): boolean {
    if (!(error instanceof CredentialError)) {
      if (!isRefusal(error)) {
        return false;
      }
      if (error.status !== 401 && error.status !== 403) {
        return true;
      }
    }
    const now = performance.now();
    this.#refusedSince ??= now;
    return now - this.#refusedSince > LIMIT_MILLISECONDS;
  }
}

/** The first wait and the longest wait between two attempts, in milliseconds, while the API server does not answer. */
const BACKOFF = { firstMilliseconds: 200, capMilliseconds: 5_000, jitter: 1 } as const;

/**
 * Repeats a request until the API server accepts it, or until another attempt is useless.
 *
 * @throws ApiError or CredentialError when another attempt is useless, or the signal's reason when the signal aborts.
 */
export async function repeated<T>(write: () => Promise<T>, signal: AbortSignal): Promise<T> {
  const backoff = new Backoff(BACKOFF);
  const patience = new Patience();
  for (;;) {
    try {
      const written = await write();
      signal.throwIfAborted();
      return written;
    } catch (error) {
      signal.throwIfAborted();
      if (patience.endsWith(error)) {
        throw error;
      }
    }
    await pause(backoff.next(), signal);
  }
}
