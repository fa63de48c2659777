/** Properties over histories: what happens to a model, step by step, in any order. */
import * as fc from 'fast-check';
import { expect, type TestContext } from 'vitest';
import type { HistoryCount } from '../../hack/vitest/reporter.ts';

/** The longest of this share of the longest allowed is long enough: which one is the longest is left to chance. */
const LONG_ENOUGH = 0.9;

export interface Histories<T> {
  readonly step: fc.Arbitrary<T>;
  /** The length of a history, in steps. */
  readonly maxLength: number;
  readonly numRuns: number;
}

/**
 * Asserts that `check` throws for none of many histories. Counts them for the report, and fails if none was about as long
 * as it may be: then all of them were short, and whatever takes longer to go wrong was not tried.
 */
export function assertHistories<T>(
  { task }: Pick<TestContext, 'task'>,
  { step, maxLength, numRuns }: Histories<T>,
  check: (history: T[]) => void,
): void {
  const lengths: number[] = [];
  const property = fc.property(fc.array(step, { maxLength }), (history) => {
    lengths.push(history.length);
    check(history);
  });
  fc.assert(property, { numRuns });
  const longest = lengths.reduce((most, length) => Math.max(most, length), 0);
  const counts: HistoryCount[] = (task.meta.histories ??= []);
  counts.push({
    test: task.name,
    histories: lengths.length,
    meanLength: lengths.reduce((sum, length) => sum + length, 0) / lengths.length,
    longest,
  });
  expect(longest, `steps of the longest history, of ${maxLength} allowed`).toBeGreaterThanOrEqual(
    Math.floor(LONG_ENOUGH * maxLength),
  );
}
