/** Decides whether an error of the API server is final. Earlier requests of the same caller succeeded, so a refusal can be temporary. */
import { type ApiError, isRefusal } from './errors.ts';

/**
 * Time in milliseconds for which a refused token or a missing right counts as temporary. An API server that has just started knows no roles
 * for a few seconds. It reads the public keys of an identity provider only every 10 s.
 */
const LIMIT_MILLISECONDS = 20_000;

export class Patience {
  #refusedSince: number | undefined;

  /** Forgets earlier refusals. Call this function when the API server has accepted the token again. */
  reset(): void {
    this.#refusedSince = undefined;
  }

  /**
   * Returns whether another attempt is useless. That is true if the request itself was refused. It is also true if the token or the
   * caller's rights have been refused for too long.
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
