/** Tables and targets of pools: hand-outs of real guests, and many claims on simulated hosts. */
import { availableParallelism } from 'node:os';
import { type ClaimOptions, type Claims, CLIENTS, measureClaims } from './claims.ts';
import { type HandOuts, type HandOutTimes, measureHandOuts, type Start, STARTS } from './handouts.ts';
import { format, milliseconds, quantile, seconds } from './report.ts';
import { median, type Verdict } from './verdicts.ts';

/** Targets for emulated guests, as medians, and for claims on two processors. */
const TARGETS = {
  readyMilliseconds: 300,
  suspendedMilliseconds: 2_000,
  crowdSeconds: 20,
  quietMilliseconds: 100,
} as const;

const ROWS: readonly [label: string, time: keyof HandOutTimes][] = [
  ['answer of the claim', 'answered'],
  ['answer of the guest agent', 'agent'],
  ['first output over SSH', 'ssh'],
  ['end of `berth vm run --pool`, from its start', 'whole'],
];

export interface Pool {
  readonly handOuts: HandOuts;
  readonly claims: Claims;
}

export async function measurePool(handOuts: number, claims: ClaimOptions): Promise<Pool> {
  return { handOuts: await measureHandOuts(handOuts), claims: await measureClaims(claims) };
}

export function poolTable({ handOuts, claims }: Pool): string {
  const { cpu, crowd, quiet } = claims;
  const times = STARTS.flatMap((start) =>
    ROWS.map(([label, time]) => row(start, label, handOuts[start][time])),
  );
  const load = (name: 'fill' | 'crowd') =>
    Object.entries(cpu[name])
      .map(([program, used]) => `${program} ${used.toFixed(1)} s`)
      .join(', ');
  return [
    format([['from the claim to', 'least', 'median', 'most', 'VMs'], ...times]),
    format([
      [`pool of ${claims.claims} VMs on ${claims.hosts} hosts, ${availableParallelism()} processors`, ''],
      ['until it was full', seconds(claims.fillSeconds)],
      [`${claims.claims} claims by ${CLIENTS} clients`, seconds(claims.crowdSeconds)],
      [
        'a claim of them, median and p99',
        `${milliseconds(median(crowd))}, ${milliseconds(quantile(crowd, 0.99))}`,
      ],
      ['until it was full again', seconds(claims.refillSeconds)],
      [
        'a claim of 10 in a second, median and p99',
        `${milliseconds(median(quiet))}, ${milliseconds(quantile(quiet, 0.99))}`,
      ],
      ['CPU until it was full', load('fill')],
      ['CPU during the claims', load('crowd')],
    ]),
  ].join('\n\n');
}

function row(start: Start, label: string, values: readonly number[]): string[] {
  const times = [Math.min(...values), median(values), Math.max(...values)];
  return [`${start}: ${label}`, ...times.map(milliseconds), String(values.length)];
}

export function poolVerdicts({ handOuts, claims }: Pool): Verdict[] {
  const { crowdSeconds, quiet, distinct, answers } = claims;
  return [
    within('ready VM, first output over SSH, median', median(handOuts.ready.ssh), TARGETS.readyMilliseconds),
    within('ready VM, guest agent, median', median(handOuts.ready.agent), TARGETS.readyMilliseconds),
    within(
      'suspended VM, first output over SSH, median',
      median(handOuts.suspended.ssh),
      TARGETS.suspendedMilliseconds,
    ),
    {
      claim: 'pool: VMs that were handed out twice',
      measured: String(answers - distinct),
      target: '0',
      reached: answers === distinct,
    },
    {
      claim: `pool: ${claims.claims} claims by ${CLIENTS} clients`,
      measured: seconds(crowdSeconds),
      target: `under ${TARGETS.crowdSeconds} s`,
      reached: crowdSeconds < TARGETS.crowdSeconds,
    },
    within('10 claims in a second, p99', quantile(quiet, 0.99), TARGETS.quietMilliseconds),
  ];
}

function within(what: string, value: number, target: number): Verdict {
  return {
    claim: `pool: ${what}`,
    measured: milliseconds(value),
    target: `under ${target} ms`,
    reached: value < target,
  };
}
