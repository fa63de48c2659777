import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { inParallel, SingleFlight } from './concurrency.ts';

const never = new AbortController().signal;

test('runs the set number of calls at a time, in order, with one item for each worker', async () => {
  const begun: number[] = [];
  const busy = new Set<number>();
  let most = 0;
  await inParallel(Array.from({ length: 20 }).keys(), 3, never, async (item, _, worker) => {
    expect(busy.has(worker)).toBe(false);
    expect([0, 1, 2]).toContain(worker);
    busy.add(worker);
    most = Math.max(most, busy.size);
    begun.push(item);
    await delay(item % 4);
    busy.delete(worker);
  });
  expect(begun).toEqual([...Array.from({ length: 20 }).keys()]);
  expect(most).toBe(3);
});

test('takes few items before their turn', async () => {
  let taken = 0;
  function* items(): Generator<number> {
    for (;;) {
      yield taken++;
    }
  }
  const end = new AbortController();
  const all = inParallel(items(), 2, end.signal, async (_, signal) => {
    const { promise, resolve } = Promise.withResolvers<void>();
    signal.addEventListener('abort', () => resolve());
    await promise;
  });
  await delay(10);
  end.abort(new Error('enough'));
  await expect(all).rejects.toThrow('enough');
  expect(taken).toBeLessThan(5);
});

test('after a failure starts no more calls, aborts those under way, and waits for their end', async () => {
  const begun: number[] = [];
  let heard = false;
  const all = inParallel([0, 1, 2, 3], 2, never, async (item, signal) => {
    begun.push(item);
    if (item === 0) {
      await delay(5);
      throw new Error('broken');
    }
    await new Promise<void>((resolve) => {
      signal.addEventListener('abort', () => setTimeout(resolve, 10));
    });
    heard = true;
  });
  await expect(all).rejects.toThrow('broken');
  expect([begun, heard]).toEqual([[0, 1], true]);
});

test('starts nothing if its signal has aborted', async () => {
  const begun: number[] = [];
  const all = inParallel([1, 2], 1, AbortSignal.abort(new Error('over')), async (item) => {
    begun.push(item);
  });
  await expect(all).rejects.toThrow('over');
  expect(begun).toEqual([]);
});

test('throws a failure of the items when all calls under way were aborted and have ended', async () => {
  const ended: number[] = [];
  function* items(): Generator<number> {
    yield* [0, 1, 2];
    throw new Error('no more items');
  }
  const all = inParallel(items(), 2, never, async (item, signal) => {
    await new Promise<void>((resolve) => {
      signal.addEventListener('abort', () => setTimeout(resolve, 10));
    });
    ended.push(item);
  });
  await expect(all).rejects.toThrow('no more items');
  expect(ended).toEqual([0, 1]);
});

interface Begun {
  signal: AbortSignal;
  onProgress: (percent: number) => void;
  end: PromiseWithResolvers<string>;
}

/** Sets up work that the test ends. */
function setUp(): { flights: SingleFlight<string>; begun: Begun[]; join: (signal?: AbortSignal) => Asked } {
  const flights = new SingleFlight<string>();
  const begun: Begun[] = [];
  function join(signal = new AbortController().signal): Asked {
    const percents: number[] = [];
    const options = { signal, onProgress: (percent: number) => percents.push(percent) };
    const result = flights.join('key', options, async (own, onProgress) => {
      const end = Promise.withResolvers<string>();
      begun.push({ signal: own, onProgress, end });
      return await end.promise;
    });
    return { result: result.catch((error: unknown) => error), percents };
  }
  return { flights, begun, join };
}

interface Asked {
  result: Promise<unknown>;
  percents: number[];
}

test('is done once for all callers, each of whom gets the progress', async () => {
  const { begun, join } = setUp();
  const first = join();
  begun[0]?.onProgress(30);
  const second = join();
  begun[0]?.onProgress(60);
  begun[0]?.end.resolve('done');
  expect(await first.result).toEqual({ result: 'done', joined: false });
  expect(await second.result).toEqual({ result: 'done', joined: true });
  expect([first.percents, second.percents]).toEqual([
    [30, 60],
    [30, 60],
  ]);
  expect(begun).toHaveLength(1);
  join();
  expect(begun).toHaveLength(2);
});

test('is cancelled when the last caller leaves, and not started again before its end', async () => {
  const { begun, join } = setUp();
  const [one, other] = [new AbortController(), new AbortController()];
  const [first, second] = [join(one.signal), join(other.signal)];
  one.abort('first left');
  expect(await first.result).toBe('first left');
  expect(begun[0]?.signal.aborted).toBe(false);
  other.abort('second left');
  expect(await second.result).toBe('second left');
  expect(begun[0]?.signal.aborted).toBe(true);
  const third = join();
  expect(begun).toHaveLength(1);
  begun[0]?.end.reject(new Error('given up'));
  await expect.poll(() => begun.length).toBe(2);
  begun[1]?.end.resolve('done');
  expect(await third.result).toEqual({ result: 'done', joined: false });
});

test('is not started for a caller that has left already', async () => {
  const { begun, join } = setUp();
  expect(await join(AbortSignal.abort('left')).result).toBe('left');
  expect(begun).toEqual([]);
});

test('lets a caller leave that waits for the end of abandoned work', async () => {
  const { begun, join } = setUp();
  const [one, other] = [new AbortController(), new AbortController()];
  const first = join(one.signal);
  one.abort('first left');
  expect(await first.result).toBe('first left');
  const second = join(other.signal);
  let outcome: unknown;
  void second.result.then((result) => {
    outcome = result;
  });
  other.abort('second left');
  await expect.poll(() => outcome).toBe('second left');
  expect(begun).toHaveLength(1);
});
