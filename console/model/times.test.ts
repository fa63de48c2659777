import { expect, it } from 'vitest';
import { JOB_TIMES_LIMIT } from '../../api/v1alpha1/jobtimelimits.ts';
import {
  begunOf,
  formatSeconds,
  placeOfTime,
  timeBars,
  type TimesDocument,
  topOf,
  totalOf,
} from './times.ts';

const NOW = Date.parse('2026-11-30T12:07:00Z');
const INDEX = Math.floor(NOW / 300_000);
const shop: TimesDocument = {
  begunAt: '2026-11-30T06:00:00Z',
  entries: [
    [INDEX, 2, 30, 20, 0, 0, 0],
    [INDEX - 287, 1, 5, 5, 0, 0, 0],
    [INDEX - 288, 9, 9, 9, 0, 0, 0],
    [INDEX + 1, 9, 9, 9, 0, 0, 0],
  ],
};
const team: TimesDocument = { begunAt: '2026-11-30T11:00:00Z', entries: [[INDEX, 1, 90, 90, 3, 600, 400]] };

it('shows the last 24 hours of all namespaces, and nothing before or after', () => {
  const bars = timeBars([shop, team], 'waited', NOW);
  expect(bars).toHaveLength(JOB_TIMES_LIMIT);
  expect(bars.filter(({ count }) => count > 0)).toEqual([
    { count: 1, mean: 5, longest: 5 },
    { count: 3, mean: 40, longest: 90 },
  ]);
  expect([bars.at(0)?.count, bars.at(-1)?.count]).toEqual([1, 3]);
  expect(totalOf(bars, 12)).toEqual({ count: 3, mean: 40, longest: 90 });
  expect(totalOf(bars, JOB_TIMES_LIMIT)).toEqual({ count: 4, mean: 31.25, longest: 90 });
  expect(timeBars([team], 'ran', NOW).at(-1)).toEqual({ count: 3, mean: 200, longest: 400 });
});

it('tells since when the operator counts, and where that is in the chart', () => {
  expect(begunOf([shop, team])).toEqual({ at: '2026-11-30T11:00:00Z', hasEarlier: true });
  expect(begunOf([team])).toEqual({ at: '2026-11-30T11:00:00Z', hasEarlier: false });
  expect(begunOf([])).toBeUndefined();
  expect(placeOfTime('2026-11-30T12:10:00Z', NOW)).toBe(1);
  expect(placeOfTime('2026-11-30T00:10:00Z', NOW)).toBe(0.5);
  expect(placeOfTime('2026-11-29T12:00:00Z', NOW)).toBeUndefined();
});

it('has a round number at the top of a chart', () => {
  const topFor = (longest: number) => topOf([{ count: 1, mean: 0, longest }]);
  expect([0, 1, 45, 61, 5_000, 200_000].map(topFor)).toEqual([1, 1, 60, 120, 7_200, 259_200]);
});

it.each([
  [0, '0 s'],
  [2.5, '2.5 s'],
  [89.4, '89 s'],
  [90, '1.5 min'],
  [600, '10 min'],
  [5_400, '1.5 h'],
  [86_400, '24 h'],
])('writes %s seconds as %s', (seconds, text) => expect(formatSeconds(seconds)).toBe(text));
