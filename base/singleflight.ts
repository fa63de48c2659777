/** Work that several may ask for at the same time and that is done once. */

type Progress = (percent: number) => void;
type Work<T> = (signal: AbortSignal, onProgress: Progress) => Promise<T>;

/** Pieces of work by their key: who asks for one that is under way waits for that. */
export class SingleFlight<T> {
  readonly #flights = new Map<string, SharedWork<T>>();

  /** `joined`: the work was begun by another. @throws Error, the reason of `signal`, when that aborts, while the work goes on for others. */
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
      // Two of the same key must not work beside each other.
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

/** One piece of work that several wait for. It ends early only when nobody waits any more. */
class SharedWork<T> {
  /** Resolves when the work has ended, however it did. */
  readonly ended: Promise<void>;
  readonly #work: Promise<T>;
  readonly #abort = new AbortController();
  readonly #listeners = new Set<Progress>();
  #waiters = 0;
  #percent = 0;

  constructor(work: Work<T>) {
    this.#work = work(this.#abort.signal, (percent) => {
      this.#percent = percent;
      for (const listener of this.#listeners) {
        listener(percent);
      }
    });
    // Its failure is each waiter's to handle; it may also come when the last one has left.
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
