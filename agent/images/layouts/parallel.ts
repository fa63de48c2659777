/** Several pieces of the same work at a time. */

/**
 * Does `work` for each item, `width` at a time, in order of their beginning. After the first failure nothing new is begun,
 * the others' signal aborts, and once all have ended the failure is thrown. When `signal` aborts: its reason.
 */
export async function inParallel<T>(
  items: Iterable<T>,
  width: number,
  signal: AbortSignal,
  work: (item: T, signal: AbortSignal, worker: number) => Promise<void>,
): Promise<void> {
  const failed = new AbortController();
  const joined = AbortSignal.any([signal, failed.signal]);
  const iterator = items[Symbol.iterator]();
  async function worker(number: number): Promise<void> {
    try {
      for (;;) {
        if (joined.aborted) {
          return;
        }
        const { done, value } = iterator.next();
        if (done === true) {
          return;
        }
        await work(value, joined, number);
      }
    } catch (error) {
      failed.abort(error);
    }
  }
  await Promise.all(Array.from({ length: width }, (_, number) => worker(number)));
  signal.throwIfAborted();
  failed.signal.throwIfAborted();
}
