/** Works on the items of a list at the same time, with a limit for the number of items under way. */
import PQueue from 'p-queue';

/**
 * Calls `work` for each item, in the order of the items. At most `width` calls run at a time. `worker` is a number from 0 to
 * `width` - 1. No two calls under way have the same number, so a caller can keep memory for each number. After the first failure
 * no further call begins, and the signal of the calls under way aborts.
 *
 * @throws the reason of `signal`, or else the first failure of `work` or `items`. It is thrown when all calls under way have
 * ended.
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
      // Each item is read from `items` only shortly before its call of `work`, because there may be very many items.
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
