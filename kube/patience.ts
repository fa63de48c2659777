/** Decides whether an error of the API server is final for a caller who had the needed right before. */
import { type ApiError, isRefusal } from './errors.ts';

/**
 * Time in milliseconds for which a refusal of a token or right counts as temporary. An API server that has just started knows no roles for
 * some seconds, and asks an identity provider for its keys only every 10 s.
 */
const LIMIT_MILLISECONDS = 20_000;

export class Patience {
  #refusedSince: number | undefined;

  /** Forgets earlier refusals, because the API server has accepted the token again. */
  reset(): void {
    this.#refusedSince = undefined;
  }

  /**
   * Returns whether a further attempt would be useless. That is the case if the request itself was refused, or if the token or right has
   * been refused for too long.
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
