/** Times of jobs, as the server tells them to the console. */
import type { JobTimes } from '../v1alpha1/jobtimes.ts';

/** Numbers of one time of jobs: the count, the sum and the highest in seconds. */
export interface TimeTotal {
  readonly count: number;
  readonly sum: number;
  readonly highest: number;
}

/** Both times of the jobs of a period. */
export interface JobTotals {
  readonly waited: TimeTotal;
  readonly ran: TimeTotal;
}

/** Times that Prometheus knows. Its numbers are no whole numbers, and `highest` is the time within which 95 % of the jobs were. */
export interface PrometheusTimes {
  /** Numbers of five minutes, as in the documents of the operator. */
  readonly entries: readonly JobTimes['entries'][number][];
  readonly hour: JobTotals;
  readonly day: JobTotals;
}

/** Either the numbers of Prometheus, or the documents that the operator keeps. */
export interface TimesAnswer {
  readonly prometheus?: PrometheusTimes;
  readonly documents?: readonly JobTimes[];
  /** Why the numbers are not those of Prometheus, although it is configured, and what to do. */
  readonly refusal?: string;
}
