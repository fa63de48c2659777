import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { inParallel } from './parallel.ts';

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
