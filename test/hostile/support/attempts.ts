/** How much hostile input is tried, from which seed, and the count of what came of it for the report. */
import type { TestContext } from 'vitest';
import type { AttemptCount } from '../../../hack/vitest/reporter.ts';

/** The seed of all generated input. Fixed when `HOSTILE_SEED` is absent, so that a red run can be repeated as it was. */
export const HOSTILE_SEED = numberFrom('HOSTILE_SEED', 1);
/** The share of the full number of inputs that `make test` has time for. `HOSTILE_SCALE=1` tries all of them. */
const DEFAULT_SCALE = 0.1;
const HOSTILE_SCALE = numberFrom('HOSTILE_SCALE', DEFAULT_SCALE);

/** How many of `full` inputs to try: at least one, at most all. */
export function scaled(full: number): number {
  return Math.max(1, Math.min(full, Math.ceil(full * HOSTILE_SCALE)));
}

/** fast-check's parameters for a property that tries `full` inputs at full scale. */
export function hostileRuns(full: number): { seed: number; numRuns: number } {
  return { seed: HOSTILE_SEED, numRuns: scaled(full) };
}

/**
 * Counts for the report that `input` (a kind, such as "two common names") was tried once and that `outcome` came
 * (such as "denied: InvalidRequest"). Both are short and the same for all inputs of a kind.
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
