import { describe, expect, it } from 'vitest';
import { Backoff, waitAfter } from './backoff.ts';

describe('back-off', () => {
  it('doubles up to its cap and starts over after a reset', () => {
    const backoff = new Backoff({ firstMilliseconds: 800, capMilliseconds: 30_000 });
    const waits = Array.from({ length: 8 }, () => backoff.next());
    expect(waits).toEqual([800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
    backoff.reset();
    expect(backoff.next()).toBe(800);
  });

  it('adds its jitter at random', () => {
    const random = [0, 0.5, 1][Symbol.iterator]();
    const backoff = new Backoff({
      firstMilliseconds: 100,
      capMilliseconds: 100,
      jitter: 1,
      random: () => random.next().value ?? 0,
    });
    expect([backoff.next(), backoff.next(), backoff.next()]).toEqual([100, 150, 200]);
  });

  it('stays at its cap after any number of failures', () => {
    expect([1, 2, 3, 5000].map((failures) => waitAfter(failures, 100, 350))).toEqual([100, 200, 350, 350]);
  });
});
