/** Decides whether an error of the API server is final. If earlier requests of the caller succeeded, a refusal can be temporary. */
import { type ApiError, isRefusal } from './errors.ts';

/**
 * Time in milliseconds for which a refusal counts as temporary if its cause is the token or a missing right. An API server that has just
 * started knows no roles for a few seconds, and reads the public keys of an identity provider only every 10 s. Until it has both, it
 * refuses valid callers.
 */
const LIMIT_MILLISECONDS = 20_000;

export class Patience {
  #refusedSince: number | undefined;

  /** Forgets earlier refusals. Call this function when the API server has accepted the token again. */
  reset(): void {
    this.#refusedSince = undefined;
  }

  /**
   * Returns whether another attempt is useless. If the API server refused the token (401) or the caller lacks a right (403), the result is
   * true only after 20 s with such refusals. After any other refusal, the result is true at once. After an error that is not a refusal, it
   * is false.
   */
  endsWith(error: unknown): error is ApiError {
    if (!isRefusal(error)) {
      return false;
    }
    if (error.status !== 401 && error.status !== 403) {
      return true;
    }
    const now = performance.now();
    this.#refusedSince ??= now;
    return now - this.#refusedSince > LIMIT_MILLISECONDS;
  }
}
