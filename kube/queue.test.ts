import * as fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { assertHistories } from '../test/support/properties.ts';
import { WorkQueue } from './queue.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Creates a queue that uses the fake clock and has no callback. */
function createQueue(): WorkQueue {
  return new WorkQueue(
    () => undefined,
    () => Date.now(),
  );
}

type Step =
  | { do: 'add' | 'urge' | 'done'; key: string }
  | { do: 'take' }
  | { do: 'later'; key: string; milliseconds: number }
  | { do: 'pass'; milliseconds: number };

const key = fc.constantFrom('a', 'b', 'c');
const milliseconds = fc.integer({ min: 0, max: 50 });
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ do: fc.constantFrom('add' as const, 'urge' as const, 'done' as const), key }),
  fc.record({ do: fc.constant('take' as const) }),
  fc.record({ do: fc.constant('later' as const), key, milliseconds }),
  fc.record({ do: fc.constant('pass' as const), milliseconds }),
);

/** Runs steps against a queue, and against a model: the keys that must still run. */
function play(steps: readonly Step[]): { working: Set<string>; owed: Set<string>; queue: WorkQueue } {
  const queue = createQueue();
  const working = new Set<string>();
  const owed = new Set<string>();
  const actions = {
    add: (one: { key: string }) => {
      queue.add(one.key);
      owed.add(one.key);
    },
    urge: (one: { key: string }) => {
      queue.add(one.key, { urgent: true });
      owed.add(one.key);
    },
    later: (one: { key: string; milliseconds: number }) => {
      queue.addAfter(one.key, one.milliseconds);
      owed.add(one.key);
    },
    take: () => {
      const ready = queue.take();
      if (ready !== undefined) {
        expect(working.has(ready.key), 'handed out while it is being worked on').toBe(false);
        working.add(ready.key);
        owed.delete(ready.key);
      }
    },
    done: (one: { key: string }) => {
      if (working.delete(one.key)) {
        queue.done(one.key);
      }
    },
    pass: (one: { milliseconds: number }) => {
      vi.advanceTimersByTime(one.milliseconds);
    },
  };
  for (const one of steps) {
    (actions[one.do] as (argument: Step) => void)(one);
  }
  return { working, owed, queue };
}

function drain(queue: WorkQueue): string[] {
  vi.advanceTimersByTime(1_000);
  const keys: string[] = [];
  for (let ready = queue.take(); ready !== undefined; ready = queue.take()) {
    keys.push(ready.key);
    queue.done(ready.key);
  }
  return keys;
}

describe('work queue', () => {
  it('never hands out a key twice at once, and loses none, in any order of calls', (context) => {
    assertHistories(context, { step, maxLength: 60, numRuns: 1_000 }, (steps) => {
      const { working, owed, queue } = play(steps);
      for (const one of working) {
        queue.done(one);
      }
      const got = drain(queue);
      expect(new Set(got)).toEqual(owed);
      expect(got.length, 'a key waited twice').toBe(owed.size);
    });
  });

  it('hands out a key once more if it was added while it was worked on', () => {
    const queue = createQueue();
    queue.add('a');
    expect(queue.take()?.key).toBe('a');
    queue.add('a');
    queue.add('a');
    expect(queue.take()).toBeUndefined();
    queue.done('a');
    expect(queue.take()?.key).toBe('a');
    queue.done('a');
    expect(queue.take()).toBeUndefined();
  });

  it('keeps the earliest of several requested times', () => {
    const queue = createQueue();
    queue.addAfter('a', 100);
    queue.addAfter('a', 20);
    queue.addAfter('a', 60);
    vi.advanceTimersByTime(19);
    expect(queue.depth).toBe(0);
    vi.advanceTimersByTime(1);
    expect(queue.take()?.key).toBe('a');
    queue.done('a');
    vi.advanceTimersByTime(1_000);
    expect(queue.depth).toBe(0);
  });

  it('is in order of arrival', () => {
    const queue = createQueue();
    for (const one of ['c', 'a', 'b', 'a']) {
      queue.add(one);
    }
    expect(drain(queue)).toEqual(['c', 'a', 'b']);
  });

  it('does not take a very long wait for no wait', () => {
    const queue = createQueue();
    queue.addAfter('a', 60 * 24 * 60 * 60 * 1000);
    vi.advanceTimersByTime(1_000);
    expect(queue.depth).toBe(0);
    queue.clear();
  });

  it('hands out urgent keys first, also keys that waited already, but never only those', () => {
    const queue = createQueue();
    ['a', 'b', 'c', 'd'].forEach((one) => queue.add(one));
    ['u', 'v', 'w', 'x', 'd'].forEach((one) => queue.add(one, { urgent: true }));
    const order = Array.from({ length: 9 }, () => queue.take()?.key);
    expect(order).toEqual(['u', 'v', 'w', 'a', 'x', 'd', 'b', 'c', undefined]);
  });

  it('keeps a key urgent that was added as urgent while it was worked on', () => {
    const queue = createQueue();
    queue.add('a');
    queue.take();
    queue.add('b');
    queue.add('a', { urgent: true });
    queue.add('a');
    queue.done('a');
    expect(queue.take()?.key).toBe('a');
  });
});
