/** Several pieces of the same work at a time. */
import PQueue from 'p-queue';

/**
 * Does `work` for each item, in order of their beginning, `width` at a time. `worker` counts from 0 to `width` - 1: no two
 * pieces of work under way have the same, so that each can have memory of its own. After the first failure nothing new
 * begins and the signal of the others aborts.
 *
 * @throws Error, the reason of `signal` or else the first failure, when all that had begun has ended.
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
  for (const item of items) {
    // An item is taken when its turn is near, for there may be a great many.
    await queue.onSizeLessThan(1);
    if (joined.aborted) {
      break;
    }
    void queue.add(async () => await run(item));
  }
  await queue.onIdle();
  signal.throwIfAborted();
  failed.signal.throwIfAborted();
}
