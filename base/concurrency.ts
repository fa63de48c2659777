/** Limits how much work runs at the same time: one piece after the other, several of a list, or each piece only once for all callers. */
import PQueue from 'p-queue';
import { unlessAborted } from './time.ts';

/** A queue that runs one piece of work at a time, in the order of the calls. */
export class Serial {
  #last: Promise<unknown> = Promise.resolve();

  /**
   * Begins `work` when the work of all earlier calls has ended or failed. The promise resolves with the result of `work`, or rejects with
   * its error. If the signal aborts before `work` begins, the promise rejects at once with the signal's reason, and `work` never runs. Later,
   * the signal has no effect.
   */
  async run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    const waiting = Promise.withResolvers<never>();
    const giveUp = () => waiting.reject(signal?.reason);
    signal?.addEventListener('abort', giveUp, { once: true });
    const result = this.#last.then(async () => {
      signal?.throwIfAborted();
      signal?.removeEventListener('abort', giveUp);
      return await work();
    });
    this.#last = result.catch(() => undefined);
    return await Promise.race([result, waiting.promise]);
  }
}

/**
 * Calls `work` for each item, in the order of the items. At most `width` calls run at a time. Each call gets a number from 0 to `width` - 1
 * as `worker`. Calls that run at the same time get different numbers, so `work` can, for example, use one buffer for each number. After
 * the first failure, no further call begins, and this function aborts the signal of the running calls.
 *
 * @throws the reason of `signal` if it aborted. Otherwise throws the first failure of `work` or `items`. In both cases, all calls have
 * ended before the function throws.
 */
export async function inParallel<T>(
  items: Iterable<T>,
  width: number,
  signal: AbortSignal,
  work: (item: T, signal: AbortSignal, worker: number) => Promise<void>,
): Promise<void> {
  const failed = new AbortController();
  const joined = AbortSignal.any([signal, failed.signal]);
  const idle = Array.from({ length: width }, (_, worker) => worker);
  const queue = new PQueue({ concurrency: width });
  const run = async (item: T): Promise<void> => {
    const worker = idle.pop();
    if (joined.aborted || worker === undefined) {
      return;
    }
    try {
      await work(item, joined, worker);
    } catch (error) {
      failed.abort(error);
    } finally {
      idle.push(worker);
    }
  };
  try {
    for (const item of items) {
      // An item is read from `items` only when its call of `work` can begin, because a list of all items can need too much memory.
      await queue.onSizeLessThan(1);
      if (joined.aborted) {
        break;
      }
      void queue.add(async () => await run(item));
    }
  } catch (error) {
    failed.abort(error);
  }
  await queue.onIdle();
  signal.throwIfAborted();
  failed.signal.throwIfAborted();
}

/** Function that takes the percentage (0–100) of the work that is done. `bytes` is the number of bytes that are done, if it is known. */
type Progress = (percent: number, bytes?: number) => void;
type Work<T> = (signal: AbortSignal, onProgress: Progress) => Promise<T>;

/** Pieces of work by key. If the work of a key is under way, another caller with this key waits for the same result. */
export class SingleFlight<T> {
  readonly #flights = new Map<string, SharedWork<T>>();

  /** Returns whether the work of a key is under way, so that {@link join} would wait for its result. */
  isRunning(key: string): boolean {
    return this.#flights.get(key)?.isAbandoned === false;
  }

  /** Resolves when the work of a key that is under way has ended, also for callers that no longer wait for it. It never rejects. */
  async ended(key: string): Promise<void> {
    await this.#flights.get(key)?.ended;
  }

  /**
   * Begins the work of a key, or joins the work if it is under way. Resolves with the result of the work. `joined` is false for the
   * caller that began the work, and true for the others.
   *
   * @throws the reason of `signal` when `signal` aborts. The work itself continues if other callers wait for its result.
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
      // The work of this key was aborted, but has not ended yet. New work waits, because two pieces of work with one key must not overlap.
      await unlessAborted(flight.ended, options.signal);
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
  /** Resolves when the work has ended or failed. It never rejects. */
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
    // If the work fails, the waiting callers get the error from `#work`. `ended` resolves even after a failure, because Node.js would end
    // the process if `ended` rejected and no caller handled the rejection.
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
    try {
      return await unlessAborted(this.#work, signal);
    } finally {
      this.#listeners.delete(onProgress);
      this.#waiters -= 1;
      if (this.#waiters === 0) {
        this.#abort.abort();
      }
    }
  }
}
