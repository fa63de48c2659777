/** How long to wait between tries. */
export interface BackoffOptions {
  firstMilliseconds: number;
  capMilliseconds: number;
  /** Up to this share of the wait is added at random: 1 spreads waits over one to two times their length. */
  jitter?: number;
  /** Between 0 and 1. */
  random?: () => number;
}

/** Waits that double up to a cap. */
export class Backoff {
  readonly #options: BackoffOptions;
  #base: number;

  constructor(options: BackoffOptions) {
    this.#options = options;
    this.#base = options.firstMilliseconds;
  }

  /** The next wait, in milliseconds; with jitter it can pass the cap by the jitter's share. */
  next(): number {
    const { capMilliseconds, jitter = 0, random = Math.random } = this.#options;
    const wait = this.#base * (1 + jitter * random());
    this.#base = Math.min(this.#base * 2, capMilliseconds);
    return wait;
  }

  reset(): void {
    this.#base = this.#options.firstMilliseconds;
  }
}
