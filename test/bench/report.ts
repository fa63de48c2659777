/** The benchmark's result as a table for people; the same numbers are printed as JSON. */
import type { Starts } from './agent.ts';
import type { Times } from './load.ts';

export interface Run extends Times {
  cpuSeconds: number;
  /** At its highest, in MB of 1024². */
  peakMegabytes: number;
  /** By verb and resource, per VM; everybody's, as the API server counts them. */
  writesPerVM: Record<string, number>;
  /** Of VMs and Pods: the operator's, or the floor's. */
  ownWritesPerVM: number;
  /** In the seconds after all were Running, Events, Leases and the simulated hosts' heartbeats apart. */
  idleWrites: Record<string, number>;
}

export interface Fleet {
  vms: number;
  hosts: number;
  operator: Run;
  floor: Run;
}

/**
 * What is to be reached. The time is that of an operator on Go's usual framework that only does the scheduling part, measured on two
 * idle cores: on another machine, or a busy one, only the ratio to the floor says something.
 */
const TARGETS = {
  totalSeconds: 11.8,
  ownWritesPerVM: 4,
  idleWrites: 0,
  peakMegabytes: 150,
  addedMilliseconds: 300,
} as const;

type Row = readonly [label: string, value: (run: Run) => string, target: string];

const ROWS: readonly Row[] = [
  [
    'first create to all Running',
    (run) => seconds(run.totalSeconds),
    `${TARGETS.totalSeconds} s on two idle cores`,
  ],
  ['create to Running, p50', (run) => seconds(run.p50Seconds), ''],
  ['create to Running, p99', (run) => seconds(run.p99Seconds), ''],
  ['CPU time', (run) => seconds(run.cpuSeconds), ''],
  ['peak memory', (run) => `${run.peakMegabytes.toFixed(0)} MB`, `under ${TARGETS.peakMegabytes} MB`],
  ['writes per VM', (run) => run.ownWritesPerVM.toFixed(2), `at most ${TARGETS.ownWritesPerVM}`],
  ['writes when idle', (run) => String(sum(run.idleWrites)), String(TARGETS.idleWrites)],
];

export function fleetTable({ vms, hosts, operator, floor }: Fleet): string {
  const title = [`${vms} VMs on ${hosts} simulated hosts`, 'operator', 'floor', 'target'];
  const lines = ROWS.map(([label, value, target]) => [label, value(operator), value(floor), target]);
  const kinds = Object.keys(operator.writesPerVM).toSorted();
  const writes = kinds.map((kind) => [
    `  ${kind} per VM`,
    perVM(operator.writesPerVM[kind]),
    perVM(floor.writesPerVM[kind]),
    '',
  ]);
  return format([title, ...lines, ...writes]);
}

/** Of a real guest; what the agent adds is the difference of the medians. */
export function startsTable({ agent, byHand }: Starts): string {
  const row = (label: string, values: readonly number[]): string[] => [
    label,
    ...[0, 0.5, 0.9].map((part) => milliseconds(quantile(values, part))),
    '',
  ];
  const added = quantile(agent, 0.5) - quantile(byHand, 0.5);
  return format([
    [`start of a guest, ${agent.length} runs`, 'least', 'median', 'p90', 'target'],
    row('Pod bound to kernel', agent),
    row('QEMU by hand to kernel', byHand),
    ['added by the agent', '', milliseconds(added), '', `at most ${TARGETS.addedMilliseconds} ms`],
  ]);
}

/** The value below which this part of them lies. */
export function quantile(values: readonly number[], part: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * part)] ?? Number.NaN;
}

export function milliseconds(value: number): string {
  return `${value.toFixed(0)} ms`;
}

/** Columns side by side. */
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

function sum(counts: Record<string, number>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}

export function seconds(value: number): string {
  return `${value.toFixed(2)} s`;
}

function perVM(value: number | undefined): string {
  return (value ?? 0).toFixed(2);
}
