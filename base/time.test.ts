import { expect, it } from 'vitest';
import { microTime, pause, rest, soonest, timestamp } from './time.ts';

it('a pause ends with the reason of its signal, a rest just ends', async () => {
  const end = new AbortController();
  const paused = pause(60_000, end.signal);
  const rested = rest(60_000, end.signal);
  end.abort(new Error('enough'));
  await expect(paused).rejects.toThrow('enough');
  await expect(rested).resolves.toBeUndefined();
});

it('writes times with microseconds', () => {
  expect(microTime(Date.UTC(2026, 10, 21, 1, 2, 3, 4))).toBe('2026-11-21T01:02:03.004000Z');
});

it('writes times with whole seconds', () => {
  expect(timestamp(Date.UTC(2026, 10, 21, 1, 2, 3, 999))).toBe('2026-11-21T01:02:03Z');
});

it('finds the earliest of the known moments', () => {
  expect(soonest(undefined, 3, Number.NaN, 1, 2)).toBe(1);
  expect(soonest(undefined, Number.NaN)).toBeUndefined();
});
