/** Table and targets of starts from the memory of an image. */
import { availableParallelism } from 'node:os';
import { format, milliseconds } from './report.ts';
import { median, type Verdict } from './verdicts.ts';
import type { Times, Warm, WarmGroup, Way } from './warm.ts';
import type { PodTimes } from './warmpods.ts';

/** Targets for emulated guests. Times are medians of guests that start one at a time. */
const TARGETS = {
  answeredMilliseconds: 400,
  /** From the bound Pod. */
  boundToAnsweredMilliseconds: 400,
  renewedMilliseconds: 1_200,
  /** Largest difference between the sizes of memory. */
  sizes: 0.2,
  /** Largest part of the time of a boot. */
  ofCold: 0.1,
  /** Largest memory of four guests from memory, in memories of one that has booted. */
  memory: 1.3,
} as const;
const MEBIBYTE = 1024 ** 2;
/** Rows of a group in the table. */
const ROWS: readonly [label: string, way: Way, time: keyof Times][] = [
  ['from memory: guest agent answers', 'warm', 'answered'],
  ['from memory: identity renewed', 'warm', 'called'],
  ['from memory: page served', 'warm', 'page'],
  ['resume: guest agent answers', 'resume', 'answered'],
  ['resume: page served', 'resume', 'page'],
  ['boot: page served', 'cold', 'page'],
  ['boot: guest agent answers', 'cold', 'answered'],
];

/** Rows of the starts through the agent. */
const POD_ROWS: readonly [label: string, time: keyof PodTimes][] = [
  ['start of the machine', 'prepared'],
  ['guest agent answers', 'answered'],
  ['identity renewed', 'renewed'],
  ['banner of the SSH server', 'banner'],
];

/** Returns the times of each guest, and then the memory and the files. */
export function warmTable(warm: Warm): string {
  const { accelerator, groups, sizes, load, pods } = warm;
  const [before, after] = load.map((value) => value.toFixed(1));
  const times = [
    [
      `starts with ${accelerator}, load ${before} before and ${after} after, ${availableParallelism()} processors`,
      'least',
      'median',
      'most',
      'guests',
    ],
    ...groups.flatMap((group) =>
      ROWS.map(([label, way, time]) =>
        timesRow(`${group.mebibytes} MiB, ${group.atOnce} at once, ${label}`, group[way][time]),
      ),
    ),
    ...POD_ROWS.map(([label, time]) => timesRow(`256 MiB, Pod bound to: ${label}`, pods[time])),
  ];
  const memory = [
    ['memory (PSS) and files', ...sizes.map(({ mebibytes }) => `${mebibytes} MiB`)],
    ['4 from memory', ...sizes.map(({ mebibytes }) => megabytes(memoryOf(warm, mebibytes, ['warm', 4])))],
    ['4 resumed', ...sizes.map(({ mebibytes }) => megabytes(memoryOf(warm, mebibytes, ['resume', 4])))],
    ['4 booted', ...sizes.map(({ mebibytes }) => megabytes(memoryOf(warm, mebibytes, ['cold', 4])))],
    ['1 from memory', ...sizes.map(({ mebibytes }) => megabytes(memoryOf(warm, mebibytes, ['warm', 1])))],
    ['1 booted', ...sizes.map(({ mebibytes }) => megabytes(memoryOf(warm, mebibytes, ['cold', 1])))],
    ['file with the memory', ...sizes.map(({ ramBytes }) => megabytes(ramBytes / MEBIBYTE))],
    ['file with the state', ...sizes.map(({ stateBytes }) => `${(stateBytes / 1024).toFixed(0)} KiB`)],
  ];
  return `${format(times)}\n\n${format(memory)}`;
}

function timesRow(label: string, values: readonly number[]): string[] {
  const times = [Math.min(...values), median(values), Math.max(...values)];
  return [label, ...times.map(milliseconds), String(values.length)];
}

/** Returns the median of the rounds with this number of guests. */
function memoryOf({ sizes }: Warm, mebibytes: number, [way, atOnce]: readonly [Way, number]): number {
  const rounds = sizes.find((size) => size.mebibytes === mebibytes)?.memory ?? [];
  const same = rounds.filter((round) => round.way === way && round.atOnce === atOnce);
  return median(same.map((round) => round.megabytes));
}

function megabytes(value: number): string {
  return `${value.toFixed(0)} MiB`;
}

export function warmVerdicts(warm: Warm): Verdict[] {
  const single = warm.groups.filter(({ atOnce }) => atOnce === 1);
  const perSize = single.flatMap((group) => verdictsOfSize(warm, group));
  const answers = single.map((group) => median(group.warm.answered));
  const difference = Math.max(...answers) / Math.min(...answers) - 1;
  return [
    ...perSize,
    {
      claim: 'warm: guest agent answers, difference of the sizes of memory',
      measured: `${(100 * difference).toFixed(0)} %`,
      target: `at most ${100 * TARGETS.sizes} %`,
      reached: difference <= TARGETS.sizes,
    },
    within(
      'Pod bound to the answer of the guest agent',
      median(warm.pods.answered),
      TARGETS.boundToAnsweredMilliseconds,
    ),
  ];
}

function within(what: string, value: number, target: number): Verdict {
  return {
    claim: `warm: ${what}, median`,
    measured: milliseconds(value),
    target: `at most ${target} ms`,
    reached: value <= target,
  };
}

function verdictsOfSize(warm: Warm, { mebibytes, warm: started, cold }: WarmGroup): Verdict[] {
  const part = (what: string, value: number, target: number): Verdict => ({
    claim: `warm: ${mebibytes} MiB, ${what}`,
    measured: value.toFixed(2),
    target: `at most ${target}`,
    reached: value <= target,
  });
  const memory = memoryOf(warm, mebibytes, ['warm', 4]) / memoryOf(warm, mebibytes, ['cold', 1]);
  return [
    within(`${mebibytes} MiB, guest agent answers`, median(started.answered), TARGETS.answeredMilliseconds),
    within(`${mebibytes} MiB, identity renewed`, median(started.called), TARGETS.renewedMilliseconds),
    part(
      'guest agent answers, part of a boot',
      median(started.answered) / median(cold.answered),
      TARGETS.ofCold,
    ),
    part('memory of 4 from memory, in booted guests', memory, TARGETS.memory),
  ];
}
