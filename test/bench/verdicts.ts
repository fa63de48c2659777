/** Targets that a benchmark is held to, each reached or missed. */
import { format } from './report.ts';

export interface Verdict {
  /** What is promised, with the part that measured it: "fleet: time of the anchor". */
  claim: string;
  measured: string;
  target: string;
  /** Undefined where it could not be measured; the target then says why. */
  reached: boolean | undefined;
}

const WORDS = { true: 'reached', false: 'MISSED', undefined: 'not measured' } as const;

/** A table with a line for each. */
export function verdictsTable(verdicts: readonly Verdict[]): string {
  return format([
    ['verdict', 'measured', 'target', ''],
    ...verdicts.map(({ claim, measured, target, reached }) => [
      claim,
      measured,
      target,
      WORDS[`${reached}` as const],
    ]),
  ]);
}

/** The value in the middle; of an even number, the mean of the two. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  const [low, high] = [sorted[Math.ceil(middle) - 1], sorted[Math.floor(middle)]];
  return ((low ?? Number.NaN) + (high ?? Number.NaN)) / 2;
}
