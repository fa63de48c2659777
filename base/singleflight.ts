/** Work that is done once for several callers that need the result at the same time. */

/** Called with the percentage (0–100) of the work that is done, and the number of bytes if it is known. */
type Progress = (percent: number, bytes?: number) => void;
type Work<T> = (signal: AbortSignal, onProgress: Progress) => Promise<T>;

/** Pieces of work by key. If the work of a key is under way, a further caller waits for its result. */
export class SingleFlight<T> {
  readonly #flights = new Map<string, SharedWork<T>>();

  /**
   * Waits for the work of a key, and begins the work if it is not under way. `joined` is true if another caller began the work.
   *
   * @throws the reason of `signal` when `signal` aborts. The work then continues for the other callers.
   */
  async join(
    key: string,
    options: { signal: AbortSignal; onProgress: Progress },
    work: Work<T>,
  ): Promise<{ result: T; joined: boolean }> {
    for (;;) {
      options.signal.throwIfAborted();
      const flight = this.#flights.get(key);
      if (flight === undefined) {
        return {
          result: await this.#begin(key, work).wait(options.signal, options.onProgress),
          joined: false,
        };
      }
      if (!flight.isAbandoned) {
        return { result: await flight.wait(options.signal, options.onProgress), joined: true };
      }
      // Two pieces of work with the same key must not run at the same time.
      await flight.ended;
    }
  }

  #begin(key: string, work: Work<T>): SharedWork<T> {
    const flight = new SharedWork<T>(async (signal, onProgress) => {
      try {
        return await work(signal, onProgress);
      } finally {
        this.#flights.delete(key);
      }
    });
    this.#flights.set(key, flight);
    return flight;
  }
}

/** One piece of work that several callers wait for. The work is aborted when no caller waits any longer. */
class SharedWork<T> {
  /** Resolves when the work has ended, whether or not it failed. */
  readonly ended: Promise<void>;
  readonly #work: Promise<T>;
  readonly #abort = new AbortController();
  readonly #listeners = new Set<Progress>();
  #waiters = 0;
  #percent = 0;

  constructor(work: Work<T>) {
    this.#work = work(this.#abort.signal, (percent, bytes) => {
      this.#percent = percent;
      for (const listener of this.#listeners) {
        listener(percent, bytes);
      }
    });
    // `ended` also resolves after a failure. Each waiting caller gets the failure from `#work`, and the failure may come after the last
    // caller has left.
    this.ended = this.#work.then(
      () => undefined,
      () => undefined,
    );
  }

  get isAbandoned(): boolean {
    return this.#abort.signal.aborted;
  }

  async wait(signal: AbortSignal, onProgress: Progress): Promise<T> {
    this.#waiters += 1;
    this.#listeners.add(onProgress);
    if (this.#percent > 0) {
      onProgress(this.#percent);
    }
    let leave: () => void = () => undefined;
    const left = new Promise<never>((_resolve, reject) => {
      leave = () => reject(signal.reason as Error);
      signal.addEventListener('abort', leave);
    });
    try {
      return await Promise.race([this.#work, left]);
    } finally {
      signal.removeEventListener('abort', leave);
      this.#listeners.delete(onProgress);
      this.#waiters -= 1;
      if (this.#waiters === 0) {
        this.#abort.abort();
      }
    }
  }
}
