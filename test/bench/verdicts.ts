/** Targets of the benchmark, each reached or missed. */
import { format } from './report.ts';

export interface Verdict {
  /** Name of the target, with the part that measured it: "fleet: time of the anchor". */
  claim: string;
  measured: string;
  target: string;
  /** Undefined if it could not be measured. The target then has the reason. */
  reached: boolean | undefined;
}

const LABELS = { true: 'reached', false: 'MISSED', undefined: 'not measured' } as const;

/** Returns a table with a line for each verdict. */
export function verdictsTable(verdicts: readonly Verdict[]): string {
  return format([
    ['verdict', 'measured', 'target', ''],
    ...verdicts.map(({ claim, measured, target, reached }) => [
      claim,
      measured,
      target,
      LABELS[`${reached}` as const],
    ]),
  ]);
}

/** Returns the median. For an even number of values it is the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  const [low, high] = [sorted[Math.ceil(middle) - 1], sorted[Math.floor(middle)]];
  return ((low ?? Number.NaN) + (high ?? Number.NaN)) / 2;
}
