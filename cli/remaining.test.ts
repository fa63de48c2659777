import { expect, it } from 'vitest';
import { durationIn, timeText } from './duration.ts';
import { estimator } from './remaining.ts';

it('estimates the time that is left, and begins anew with the work', () => {
  let now = 0;
  const timed = estimator(() => now);
  const estimate = (percent: number) => timed(percent, `${percent} %`);
  expect(estimate(10)).toBe('10 %');
  now = 30_000;
  expect(estimate(11)).toBe('11 %');
  now = 60_000;
  expect(estimate(40)).toBe('40 %, 2 min left');
  expect(estimate(5)).toBe('5 %');
  now = 70_000;
  expect(estimate(55)).toBe('55 %, 9 s left');
  // The next step of the work has a progress of its own.
  expect(estimate(10)).toBe('10 %');
  now = 80_000;
  expect(estimate(60)).toBe('60 %, 8 s left');
});

it.each([
  ['90s', 90_000, '90 s'],
  ['10m', 600_000, '10 min'],
  ['10', 600_000, '10 min'],
  ['3h', 10_800_000, '3 h'],
])('reads %s as %i ms', (text, milliseconds, words) => {
  expect(durationIn(text)).toBe(milliseconds);
  expect(timeText(milliseconds)).toBe(words);
});

it.each(['0s', '', '-1m', '1d', '999999h', '1.5h', 'm'])('refuses %j', (text) => {
  expect(() => durationIn(text)).toThrow('90s, 10m or 2h');
});
