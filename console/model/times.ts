/** Times of jobs in the last 24 hours, as charts show them. */
import { JOB_TIMES_LIMIT, JOB_TIMES_MILLISECONDS } from '../../api/v1alpha1/jobtimelimits.ts';
import type { JobTotals, TimesAnswer, TimeTotal } from '../../api/http/consoletimes.ts';
import { compareTexts } from './texts.ts';

/** Numbers of five minutes, as the server sends them: their index since 1970, and count, sum and longest time of the waits and of the runs. */
export type TimesEntry = readonly [number, number, number, number, number, number, number];

/** Times of one namespace. */
export interface TimesDocument {
  /** Time from which the operator has measured. Earlier entries are of an earlier process. */
  readonly begunAt: string;
  readonly entries: readonly TimesEntry[];
}

export type TimeMeasure = 'waited' | 'ran';

/** Five minutes of a chart. */
export interface Bar {
  readonly count: number;
  /** Mean and longest time in seconds. Of Prometheus, the longest is the time within which 95 % of the jobs were. */
  readonly mean: number;
  readonly longest: number;
}

const PLACES = { waited: 1, ran: 4 } as const;

/** Where the shown numbers are from. Prometheus does not know the longest time, and shows the time within which 95 % of the jobs were. */
export type TimesSource = 'operator' | 'prometheus';

/** Numbers of one measure, as the page shows them. */
export interface ShownTimes {
  readonly bars: readonly Bar[];
  readonly hour: Bar;
  readonly day: Bar;
}

/** Number of bars of an hour. */
const HOUR_BARS = 3_600_000 / JOB_TIMES_MILLISECONDS;

/** Returns what the page shows of an answer. `now` is in milliseconds. */
export function shownTimes(
  { prometheus, documents = [] }: TimesAnswer,
  measure: TimeMeasure,
  now: number,
): ShownTimes {
  const bars = timeBars(prometheus === undefined ? documents : [prometheus], measure, now);
  const total = (period: JobTotals | undefined, count: number) =>
    period === undefined ? totalOf(bars, count) : barOf(period[measure]);
  return {
    bars,
    hour: total(prometheus?.hour, HOUR_BARS),
    day: total(prometheus?.day, JOB_TIMES_LIMIT),
  };
}

function barOf({ count, sum, highest }: TimeTotal): Bar {
  return { count, mean: count === 0 ? 0 : sum / count, longest: highest };
}

/** Returns the bars of the last 24 hours, the oldest first. The documents are of different namespaces. `now` is in milliseconds. */
export function timeBars(
  documents: readonly Pick<TimesDocument, 'entries'>[],
  measure: TimeMeasure,
  now: number,
): Bar[] {
  const last = Math.floor(now / JOB_TIMES_MILLISECONDS);
  const sums = Array.from({ length: JOB_TIMES_LIMIT }, () => ({ count: 0, sum: 0, longest: 0 }));
  const place = PLACES[measure];
  for (const entry of documents.flatMap(({ entries }) => entries)) {
    const sum = sums[JOB_TIMES_LIMIT - 1 - (last - entry[0])];
    if (sum !== undefined) {
      sum.count += entry[place];
      sum.sum += entry[place + 1] ?? 0;
      sum.longest = Math.max(sum.longest, entry[place + 2] ?? 0);
    }
  }
  return sums.map(({ count, sum, longest }) => ({ count, mean: count === 0 ? 0 : sum / count, longest }));
}

/** Returns the number of jobs, their mean and their longest time in the last `count` bars. */
export function totalOf(bars: readonly Bar[], count: number): Bar {
  const chosen = bars.slice(-count);
  const jobs = chosen.reduce((sum, bar) => sum + bar.count, 0);
  const seconds = chosen.reduce((sum, bar) => sum + bar.count * bar.mean, 0);
  return {
    count: jobs,
    mean: jobs === 0 ? 0 : seconds / jobs,
    longest: Math.max(0, ...chosen.map(({ longest }) => longest)),
  };
}

/** Round numbers of seconds for the top of a chart. */
const TOPS = [
  1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400,
];

/** Returns a round number of seconds that is at least as large as the longest time. */
export function topOf(bars: readonly Bar[]): number {
  const longest = Math.max(1, ...bars.map((bar) => bar.longest));
  return TOPS.find((top) => top >= longest) ?? Math.ceil(longest / 86_400) * 86_400;
}

/** Returns the place of a time among the bars, from 0 (the oldest) to 1 (now). It is undefined outside of them. */
export function placeOfTime(time: string, now: number): number | undefined {
  const end = (Math.floor(now / JOB_TIMES_MILLISECONDS) + 1) * JOB_TIMES_MILLISECONDS;
  const place = 1 - (end - Date.parse(time)) / (JOB_TIMES_LIMIT * JOB_TIMES_MILLISECONDS);
  return place >= 0 && place <= 1 ? place : undefined;
}

/** Since when the operator has counted without a break. */
export interface Begun {
  readonly at: string;
  /** Whether there are numbers of an earlier process of the operator. */
  readonly hasEarlier: boolean;
}

/** Returns the begin of the latest of these processes of the operator. It is undefined without documents. */
export function begunOf(documents: readonly TimesDocument[]): Begun | undefined {
  const at = documents
    .map(({ begunAt }) => begunAt)
    .toSorted(compareTexts)
    .at(-1);
  if (at === undefined) {
    return undefined;
  }
  const first = Math.floor(Date.parse(at) / JOB_TIMES_MILLISECONDS);
  return { at, hasEarlier: documents.some(({ entries }) => entries.some(([index]) => index < first)) };
}

/** Units of times, with their length in seconds and the number of seconds up to which they are used. */
const UNITS = [
  ['s', 1, 90],
  ['min', 60, 5_400],
  ['h', 3_600, Number.POSITIVE_INFINITY],
] as const;

/** Returns a time for people, for example `45 s`, `12 min` or `1.5 h`. */
export function formatSeconds(seconds: number): string {
  const [unit, length] = UNITS.find(([, , limit]) => seconds < limit) ?? UNITS[2];
  const value = seconds / length;
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ${unit}`;
}
