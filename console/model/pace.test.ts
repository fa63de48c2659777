import { expect, it } from 'vitest';
import { Pace } from './pace.ts';

it('acts at once, and then once per interval for any number of requests', () => {
  let now = 0;
  const acts: number[] = [];
  const due: { at: number; act: () => void }[] = [];
  const pace = new Pace({
    intervalMilliseconds: 1_000,
    act: () => acts.push(now),
    now: () => now,
    schedule: (act, milliseconds) => due.push({ at: now + milliseconds, act }),
  });
  for (now = 0; now < 3_500; now += 10) {
    due.filter(({ at }) => at <= now).forEach(({ act }) => act());
    due.splice(0, due.length, ...due.filter(({ at }) => at > now));
    pace.request();
  }
  expect(acts).toEqual([0, 1_000, 2_000, 3_000]);
});
