/** Property tests over histories, which apply steps to a model in any order. */
import * as fc from 'fast-check';
import { expect, type TestContext } from 'vitest';
import type { HistoryCount } from '../../hack/vitest/reporter.ts';

/** Share of the allowed length that the longest history must reach. The share is below 1, because the lengths are random. */
const LONG_ENOUGH = 0.9;

export interface Histories<T> {
  readonly step: fc.Arbitrary<T>;
  /** Largest length of a history, in steps. */
  readonly maxLength: number;
  readonly numRuns: number;
}

/**
 * Asserts that `check` throws for none of many histories, and reports the number of histories. The assertion also fails if the
 * longest history is much shorter than allowed, because faults that need many steps were then not tested.
 */
export function assertHistories<T>(
  context: Pick<TestContext, 'task'>,
  histories: Histories<T>,
  check: (history: T[]) => void,
): void {
  const lengths: number[] = [];
  const property = fc.property(fc.array(histories.step, { maxLength: histories.maxLength }), (history) => {
    lengths.push(history.length);
    check(history);
  });
  fc.assert(property, { numRuns: histories.numRuns });
  report(context, histories, lengths);
}

/** Does the same as {@link assertHistories} for an asynchronous `check`. */
export async function assertAsyncHistories<T>(
  context: Pick<TestContext, 'task'>,
  histories: Histories<T>,
  check: (history: T[]) => Promise<void>,
): Promise<void> {
  const lengths: number[] = [];
  const property = fc.asyncProperty(
    fc.array(histories.step, { maxLength: histories.maxLength }),
    async (history) => {
      lengths.push(history.length);
      await check(history);
    },
  );
  await fc.assert(property, { numRuns: histories.numRuns });
  report(context, histories, lengths);
}

function report<T>(
  { task }: Pick<TestContext, 'task'>,
  { maxLength }: Histories<T>,
  lengths: readonly number[],
): void {
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
