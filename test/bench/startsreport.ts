/** Table and targets of the starts of a real guest. */
import type { Starts } from './agent.ts';
import { format, milliseconds, quantile } from './report.ts';
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
