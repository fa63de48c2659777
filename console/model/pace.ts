/** Limits how often something is done: at once if it was not done lately, and else when the interval is over. */
export interface PaceOptions {
  readonly intervalMilliseconds: number;
  readonly act: () => void;
  /** Returns the present time in milliseconds. */
  readonly now: () => number;
  readonly schedule: (act: () => void, milliseconds: number) => void;
}

export class Pace {
  readonly #options: PaceOptions;
  #last = Number.NEGATIVE_INFINITY;
  #isScheduled = false;

  constructor(options: PaceOptions) {
    this.#options = options;
  }

  /** Asks for the act. Requests before the end of the interval together lead to one act. */
  request(): void {
    if (this.#isScheduled) {
      return;
    }
    const { intervalMilliseconds, now, schedule } = this.#options;
    const wait = this.#last + intervalMilliseconds - now();
    if (wait <= 0) {
      this.#act();
      return;
    }
    this.#isScheduled = true;
    schedule(() => this.#act(), wait);
  }

  #act(): void {
    this.#isScheduled = false;
    this.#last = this.#options.now();
    this.#options.act();
  }
}
