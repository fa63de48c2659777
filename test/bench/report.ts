/** Functions for tables of results, and the table of starts. */
import type { Starts } from './agent.ts';
import type { Verdict } from './verdicts.ts';

/** Targets. */
const TARGETS = { addedMilliseconds: 300 } as const;

/** Returns the table of starts of a real guest. The time added by the agent is the difference of the medians. */
export function startsTable({ agent, byHand }: Starts): string {
  const row = (label: string, values: readonly number[]): string[] => [
    label,
    ...[0, 0.5, 0.9].map((part) => milliseconds(quantile(values, part))),
  ];
  const added = quantile(agent, 0.5) - quantile(byHand, 0.5);
  return format([
    [`start of a guest, ${agent.length} runs`, 'least', 'median', 'p90'],
    row('Pod bound to kernel', agent),
    row('QEMU by hand to kernel', byHand),
    ['added by the agent', '', milliseconds(added), ''],
  ]);
}

export function startsVerdicts({ agent, byHand }: Starts): Verdict[] {
  const added = quantile(agent, 0.5) - quantile(byHand, 0.5);
  return [
    {
      claim: 'starts: added by the agent, median',
      measured: milliseconds(added),
      target: `at most ${TARGETS.addedMilliseconds} ms`,
      reached: added <= TARGETS.addedMilliseconds,
    },
  ];
}

/** Returns the value below which this share of the values lies. */
export function quantile(values: readonly number[], part: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * part)] ?? Number.NaN;
}

export function milliseconds(value: number): string {
  return `${value.toFixed(0)} ms`;
}

/** Returns rows with aligned columns. */
export function format(rows: readonly string[][]): string {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  return rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

export function seconds(value: number): string {
  return `${value.toFixed(2)} s`;
}
