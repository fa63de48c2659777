/** Number and seed of hostile inputs, and the counts of their outcomes for the report. */
import type { TestContext } from 'vitest';
import type { AttemptCount } from '../../../hack/vitest/reporter.ts';

/** Seed of all generated input. Without `HOSTILE_SEED` it is fixed, so that a failed run can be repeated exactly. */
export const HOSTILE_SEED = numberFrom('HOSTILE_SEED', 1);
/** Share of all inputs that `make test` has time for. `HOSTILE_SCALE=1` tries all of them. */
const DEFAULT_SCALE = 0.1;
const HOSTILE_SCALE = numberFrom('HOSTILE_SCALE', DEFAULT_SCALE);

/** Returns how many of `full` inputs to try: at least one, at most all. */
export function scaled(full: number): number {
  return Math.max(1, Math.min(full, Math.ceil(full * HOSTILE_SCALE)));
}

/** Returns the parameters of fast-check for a property that tries `full` inputs at full scale. */
export function hostileRuns(full: number): { seed: number; numRuns: number } {
  return { seed: HOSTILE_SEED, numRuns: scaled(full) };
}

/**
 * Counts one attempt for the report. `input` is a kind of input, for example "two common names". `outcome` is its result, for example
 * "denied: InvalidRequest". Both are short, and equal for all inputs of a kind.
 */
export function tried({ task }: Pick<TestContext, 'task'>, input: string, outcome: string): void {
  const attempts: AttemptCount[] = (task.meta.attempts ??= []);
  const known = attempts.find((one) => one.input === input && one.outcome === outcome);
  if (known === undefined) {
    attempts.push({ input, outcome, count: 1 });
  } else {
    known.count += 1;
  }
}

function numberFrom(name: string, fallback: number): number {
  const text = process.env[name];
  if (text === undefined || text === '') {
    return fallback;
  }
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0) {
    throw new Error(`${name}: ${text} is not a number from 0 up`);
  }
  return value;
}
