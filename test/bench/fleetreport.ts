/** Shows the results of fleets as a table of medians, and whether they reach their targets. */
import type { Contestant } from './contestants.ts';
import type { Fleet, Run } from './fleet.ts';
import { format, seconds } from './report.ts';
import { median, type Verdict } from './verdicts.ts';

type Name = Contestant['name'];
type Counts = Readonly<Record<string, number>>;
/** Medians. For idle writes, the largest number of a round. */
type Medians = Omit<Run, 'idleWrites'> & { idleWrites: number };

/**
 * Targets, which the project set itself. The anchor only places VMs and runs without admission policies, like the operator that it is
 * compared with.
 */
const TARGETS = { ownWritesPerVM: 4, cpuOfAnchor: 1.2, peakMegabytes: 120, memoryOfAnchor: 1.2 } as const;
const COLUMNS: readonly Name[] = ['operator', 'without policies', 'anchor', 'floor'];

const ROWS: readonly (readonly [label: string, value: (run: Medians) => string])[] = [
  ['first create to all Running', (run) => seconds(run.totalSeconds)],
  ['create to Running, p50', (run) => seconds(run.p50Seconds)],
  ['create to Running, p99', (run) => seconds(run.p99Seconds)],
  ['CPU time', (run) => seconds(run.cpuSeconds)],
  ['peak memory', (run) => `${run.peakMegabytes.toFixed(0)} MB`],
  ['writes per VM', (run) => run.ownWritesPerVM.toFixed(2)],
  ['writes when idle', (run) => String(run.idleWrites)],
];

/** Returns a table with the medians of all rounds, and then CPU time of all programs, bytes of objects and writes of all programs, for one VM. */
export function fleetTable({ vms, hosts, runs }: Fleet): string {
  const names = COLUMNS.filter((name) => runs[name] !== undefined);
  const columns = names.map((name) => mediansOf(runs[name] ?? []));
  const rounds = runs.operator?.length ?? 0;
  const rows = (label: (key: string) => string, values: (run: Medians) => Counts, digits: number) => {
    const keys = [...new Set(columns.flatMap((run) => Object.keys(values(run))))].toSorted();
    return keys.map((key) => [label(key), ...columns.map((run) => (values(run)[key] ?? 0).toFixed(digits))]);
  };
  return format([
    [`${vms} VMs on ${hosts} simulated hosts, ${rounds} rounds`, ...names],
    ...ROWS.map(([label, value]) => [label, ...columns.map(value)]),
    ...rows(
      (name) => `  CPU of ${name} per VM, ms`,
      ({ cpuOfPrograms }) => cpuOfPrograms,
      2,
    ),
    ...rows(
      (name) => `  bytes of a ${name}`,
      ({ bytes }) => bytes,
      0,
    ),
    ...rows(
      (kind) => `  ${kind} per VM`,
      ({ writesPerVM }) => writesPerVM,
      2,
    ),
  ]);
}

/** Compares times, CPU and memory with those of the anchor. Writes are those with policies. */
export function fleetVerdicts({ vms, runs }: Fleet): Verdict[] {
  const operator = mediansOf(runs.operator ?? []);
  const [bare, anchor] = [mediansOf(runs['without policies'] ?? []), mediansOf(runs.anchor ?? [])];
  const beside = runs.anchor !== undefined;
  const ratio = (value: number, other: number, most: number) => ({
    measured: (value / other).toFixed(2),
    target: beside ? `at most ${most}` : 'Go builds the anchor, and there is none',
    reached: beside ? value <= other * most : undefined,
  });
  const most = Math.max(TARGETS.peakMegabytes, (anchor.peakMegabytes || 0) * TARGETS.memoryOfAnchor);
  return [
    { claim: `${vms} VMs: time of the anchor's`, ...ratio(bare.totalSeconds, anchor.totalSeconds, 1) },
    {
      claim: `${vms} VMs: CPU of the anchor's`,
      ...ratio(bare.cpuSeconds, anchor.cpuSeconds, TARGETS.cpuOfAnchor),
    },
    {
      claim: `${vms} VMs: peak memory`,
      measured: `${bare.peakMegabytes.toFixed(0)} MB`,
      target: `at most ${most.toFixed(0)} MB`,
      reached: bare.peakMegabytes <= most,
    },
    {
      claim: `${vms} VMs: writes per VM`,
      measured: operator.ownWritesPerVM.toFixed(2),
      target: `at most ${TARGETS.ownWritesPerVM}`,
      reached: operator.ownWritesPerVM <= TARGETS.ownWritesPerVM,
    },
    {
      claim: `${vms} VMs: writes when idle`,
      measured: String(operator.idleWrites),
      target: '0',
      reached: operator.idleWrites === 0,
    },
  ];
}

function mediansOf(runs: readonly Run[]): Medians {
  const of = (value: (run: Run) => number): number => median(runs.map(value));
  const each = (counts: (run: Run) => Counts): Counts => {
    const keys = new Set(runs.flatMap((run) => Object.keys(counts(run))));
    return Object.fromEntries([...keys].map((key) => [key, of((run) => counts(run)[key] ?? 0)]));
  };
  return {
    totalSeconds: of((run) => run.totalSeconds),
    p50Seconds: of((run) => run.p50Seconds),
    p99Seconds: of((run) => run.p99Seconds),
    cpuSeconds: of((run) => run.cpuSeconds),
    peakMegabytes: of((run) => run.peakMegabytes),
    ownWritesPerVM: of((run) => run.ownWritesPerVM),
    cpuOfPrograms: each(({ cpuOfPrograms }) => cpuOfPrograms),
    bytes: each(({ bytes }) => bytes),
    writesPerVM: each(({ writesPerVM }) => writesPerVM),
    idleWrites: Math.max(0, ...runs.map(({ idleWrites }) => sum(idleWrites))),
  };
}

function sum(counts: Record<string, number>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}
