/** Counts something again and again, and keeps the greatest count. */
import { rest } from '../../base/time.ts';

/** Interval between two counts in milliseconds. It is much shorter than the start of a machine, so no machine is missed. */
const INTERVAL_MILLISECONDS = 100;

export class GreatestCount {
  readonly #count: () => Promise<number>;
  readonly #stopping = new AbortController();
  readonly #counting: Promise<void>;
  #most = 0;
  #looking: Promise<void> = Promise.resolve();

  constructor(count: () => Promise<number>) {
    this.#count = count;
    this.#counting = this.#loop();
    // `stop` reports an error of a count. Until then, the rejection must not be an unhandled rejection.
    this.#counting.catch(() => undefined);
  }

  /** Returns the greatest count since the start, or since the last call. */
  async greatest(): Promise<number> {
    // A count that is under way is awaited first, because it can contain machines that have ended in the meantime.
    await this.#looking;
    const most = this.#most;
    this.#most = 0;
    return most;
  }

  /** @throws the error of a count that failed. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#counting;
  }

  async #loop(): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      this.#looking = this.#look();
      await this.#looking;
      await rest(INTERVAL_MILLISECONDS, this.#stopping.signal);
    }
  }

  async #look(): Promise<void> {
    this.#most = Math.max(this.#most, await this.#count());
  }
}
