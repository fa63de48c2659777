/** Computes the waits between attempts. Each failure makes the next wait longer. */

/**
 * Returns the wait in milliseconds after `failures` failures in a row. The wait starts at `firstMilliseconds` and doubles with each further
 * failure, up to `capMilliseconds`.
 */
export function waitAfter(failures: number, firstMilliseconds: number, capMilliseconds: number): number {
  return Math.min(firstMilliseconds * 2 ** (failures - 1), capMilliseconds);
}

export interface BackoffOptions {
  firstMilliseconds: number;
  capMilliseconds: number;
  /** Largest random addition to a wait, as a share of the wait. If it is 1, the addition at most doubles the wait. */
  jitter?: number;
  /** Function that returns a random number between 0 and 1. */
  random?: () => number;
}

/** Counts failures in a row and computes the wait after each failure. */
export class Backoff {
  readonly #options: BackoffOptions;
  #failures = 0;

  constructor(options: BackoffOptions) {
    this.#options = options;
  }

  /** Returns the next wait, in milliseconds. With jitter, the wait can exceed the cap by at most `jitter` times the cap. */
  next(): number {
    const { firstMilliseconds, capMilliseconds, jitter = 0, random = Math.random } = this.#options;
    this.#failures += 1;
    return waitAfter(this.#failures, firstMilliseconds, capMilliseconds) * (1 + jitter * random());
  }

  reset(): void {
    this.#failures = 0;
  }
}
