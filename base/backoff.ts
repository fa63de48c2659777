/** How long to wait between tries. */

/** The wait after so many failures in a row, in milliseconds: `first` after one, then twice as long after each, up to `cap`. */
export function waitAfter(failures: number, firstMilliseconds: number, capMilliseconds: number): number {
  return Math.min(firstMilliseconds * 2 ** (failures - 1), capMilliseconds);
}

export interface BackoffOptions {
  firstMilliseconds: number;
  capMilliseconds: number;
  /** Up to this share of the wait is added at random: 1 spreads waits over one to two times their length. */
  jitter?: number;
  /** Between 0 and 1. */
  random?: () => number;
}

/** Counts failures in a row and gives the wait after each. */
export class Backoff {
  readonly #options: BackoffOptions;
  #failures = 0;

  constructor(options: BackoffOptions) {
    this.#options = options;
  }

  /** The next wait, in milliseconds; with jitter it can pass the cap by the jitter's share. */
  next(): number {
    const { firstMilliseconds, capMilliseconds, jitter = 0, random = Math.random } = this.#options;
    this.#failures += 1;
    return waitAfter(this.#failures, firstMilliseconds, capMilliseconds) * (1 + jitter * random());
  }

  reset(): void {
    this.#failures = 0;
  }
}
