import * as fc from 'fast-check';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { assertAsyncHistories } from '../../test/support/properties.ts';
import { afterMore, type SignInFailures, Lockouts, recent } from './lockouts.ts';

const RULES = { failures: 20, seconds: 300 };

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

/** The counts that the replicas share. */
class Shared {
  readonly failures = new Map<string, SignInFailures>();
  isAway = false;
  /** Whether the watch of a replica does not show the counts yet. */
  isBehind = false;

  of(source: string): SignInFailures | undefined {
    return this.isBehind ? undefined : this.failures.get(source);
  }

  all(): SignInFailures[] {
    return [...this.failures.values()];
  }

  async add(source: string): Promise<number | undefined> {
    if (this.isAway) {
      return undefined;
    }
    const before = recent(this.failures.get(source), RULES, Date.now())?.count ?? 0;
    this.failures.set(source, afterMore(this.failures.get(source), 1, RULES, Date.now()));
    return before + 1;
  }
}

/** Lets failures arrive. Returns how many got an answer. */
async function fail(lockouts: Lockouts, source: string, count: number): Promise<number> {
  const answers = Array.from({ length: count }, async () => await lockouts.fail(source));
  return (await Promise.all(answers)).filter(Boolean).length;
}

it('answers the first 20 failures of a source at two replicas together, and then nothing for 5 minutes', async () => {
  const shared = new Shared();
  const [one, two] = [new Lockouts(RULES, shared), new Lockouts(RULES, shared)];
  expect(await fail(one, 'a', 12)).toBe(12);
  expect(await fail(two, 'a', 12)).toBe(8);
  expect([one, two].map((lockouts) => lockouts.isLocked('a'))).toEqual([true, true]);
  expect(one.isLocked('b')).toBe(false);
  expect([one.size, two.size]).toEqual([1, 1]);
  vi.advanceTimersByTime(299_999);
  expect([one, two].map((lockouts) => lockouts.isLocked('a'))).toEqual([true, true]);
  vi.advanceTimersByTime(1);
  expect([one, two].map((lockouts) => lockouts.isLocked('a'))).toEqual([false, false]);
  expect(two.size).toBe(0);
  expect(await fail(two, 'a', 30)).toBe(20);
});

it('counts together before the watch shows the failures of the other replica', async () => {
  const shared = new Shared();
  shared.isBehind = true;
  const [one, two] = [new Lockouts(RULES, shared), new Lockouts(RULES, shared)];
  expect(await fail(one, 'a', 12)).toBe(12);
  expect(await fail(two, 'a', 12)).toBe(8);
  expect(two.isLocked('a')).toBe(true);
});

it('does not count requests during a lock-out, so that it ends', async () => {
  const lockouts = new Lockouts(RULES, new Shared());
  await fail(lockouts, 'a', 20);
  vi.advanceTimersByTime(200_000);
  expect(await fail(lockouts, 'a', 5)).toBe(0);
  vi.advanceTimersByTime(100_000);
  expect(lockouts.isLocked('a')).toBe(false);
});

it('counts alone while the counts are not shared', async () => {
  const shared = new Shared();
  const locked = vi.fn<() => void>();
  const lockouts = new Lockouts(RULES, shared, locked);
  expect(await fail(lockouts, 'a', 10)).toBe(10);
  shared.isAway = true;
  expect(await fail(lockouts, 'a', 15)).toBe(10);
  expect(lockouts.isLocked('a')).toBe(true);
  expect(await fail(lockouts, 'b', 25)).toBe(20);
  expect(lockouts.size).toBe(1);
  expect(locked).toHaveBeenCalledTimes(2);
});

it('forgets failures only after a quiet time, in all histories', async (context) => {
  const step = fc.record({
    wait: fc.integer({ min: 0, max: 400 }),
    replica: fc.boolean(),
    away: fc.boolean(),
  });
  await assertAsyncHistories(context, { step, maxLength: 60, numRuns: 100 }, async (steps) => {
    const shared = new Shared();
    const replicas = [new Lockouts(RULES, shared), new Lockouts(RULES, shared)] as const;
    let answered = 0;
    let last = Number.NEGATIVE_INFINITY;
    for (const { wait, replica, away } of steps) {
      vi.advanceTimersByTime(wait * 1000);
      shared.isAway = away;
      const now = Date.now();
      answered = now - last >= 300_000 ? 0 : answered;
      const isAnswered = await replicas[replica ? 0 : 1].fail('a');
      if (isAnswered) {
        answered += 1;
        last = now;
      }
      // A replica that counts alone lets at most another 20 through.
      expect(answered).toBeLessThanOrEqual(40);
      // A source is only locked out after 20 failures.
      expect(isAnswered || answered >= 20).toBe(true);
    }
  });
});
