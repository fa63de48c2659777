/** Works on several items of a list at the same time. The number of items under way is limited. */
import PQueue from 'p-queue';

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
