/** Waits between attempts, which become longer with each failure. */

/** Returns the wait after `failures` failures in a row, in milliseconds: `first`, then doubled for each further one, at most `cap`. */
export function waitAfter(failures: number, firstMilliseconds: number, capMilliseconds: number): number {
  return Math.min(firstMilliseconds * 2 ** (failures - 1), capMilliseconds);
}

export interface BackoffOptions {
  firstMilliseconds: number;
  capMilliseconds: number;
  /** Largest share of the wait that is added at random. With 1, a wait takes one to two times its length. */
  jitter?: number;
  /** Function that returns a random number between 0 and 1. */
  random?: () => number;
}

/** Counts failures in a row and computes the wait after each. */
export class Backoff {
  readonly #options: BackoffOptions;
  #failures = 0;

  constructor(options: BackoffOptions) {
    this.#options = options;
  }

  /** Returns the next wait, in milliseconds. With jitter, the wait can be longer than the cap, at most by the share `jitter`. */
  next(): number {
    const { firstMilliseconds, capMilliseconds, jitter = 0, random = Math.random } = this.#options;
    this.#failures += 1;
    return waitAfter(this.#failures, firstMilliseconds, capMilliseconds) * (1 + jitter * random());
  }

  reset(): void {
    this.#failures = 0;
  }
}
