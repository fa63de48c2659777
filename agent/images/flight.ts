/** One piece of work that several wait for. It ends early only when nobody waits any more. */
export class SharedWork<T> {
  readonly #work: Promise<T>;
  readonly #abort = new AbortController();
  readonly #listeners = new Set<(percent: number) => void>();
  #waiters = 0;

  constructor(work: (signal: AbortSignal, onProgress: (percent: number) => void) => Promise<T>) {
    this.#work = work(this.#abort.signal, (percent) => {
      for (const listener of this.#listeners) listener(percent);
    });
    // Its failure is each waiter's to handle; it may also come when the last one has left.
    this.#work.catch(() => undefined);
  }

  /** Rejects with the reason of `signal` when that aborts, while the work goes on for others. */
  async wait(signal: AbortSignal, onProgress: (percent: number) => void): Promise<T> {
    signal.throwIfAborted();
    this.#waiters += 1;
    this.#listeners.add(onProgress);
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
      if (this.#waiters === 0) this.#abort.abort();
    }
  }
}
