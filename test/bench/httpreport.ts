/** Shows the figures of the HTTP API beside those of the API server, and whether they reach their targets. */
import type { Compared, HTTPFigures, Batch } from './http.ts';
import type { Work } from './httpside.ts';
import { format } from './report.ts';
import { median, type Verdict } from './verdicts.ts';

/** Targets. The memory is the chart's request for a Pod. */
const TARGETS = {
  addedMilliseconds: 5,
  p99: 2,
  perSecond: 0.5,
  delayMilliseconds: 50,
  idleMebibytes: 128,
} as const;
const TITLES: Readonly<Record<Work, string>> = { list: 'list of the VMs', deploy: 'deploy accepted' };

const WORKS = Object.keys(TITLES) as Work[];

export function httpTable(figures: HTTPFigures): string {
  const { vms, work, startMilliseconds, idleMegabytes, peakMegabytes } = figures;
  const rounds = work.list.server.length;
  return format([
    [`${vms} VMs, medians of ${rounds} rounds`, 'API server', 'HTTP API'],
    ...WORKS.flatMap((kind) => rowsOf(TITLES[kind], work[kind])),
    ['start until ready', '', `${startMilliseconds.toFixed(0)} ms`],
    ['memory when idle', '', `${idleMegabytes.toFixed(0)} MB`],
    ['peak memory', '', `${peakMegabytes.toFixed(0)} MB`],
  ]);
}

function rowsOf(title: string, { apiServer, server, delays }: Compared): string[][] {
  const row = (label: string, of: (batch: Batch) => number, text: (value: number) => string) => [
    `${title}, ${label}`,
    ...[apiServer, server].map((batches) => text(median(batches.map(of)))),
  ];
  return [
    row('p50', ({ p50 }) => p50, fine),
    row('p99', ({ p99 }) => p99, fine),
    row(
      'requests per second',
      ({ perSecond }) => perSecond,
      (value) => value.toFixed(0),
    ),
    [`${title}, delay of the event loop, p99`, '', fine(median(delays))],
  ];
}

export function httpVerdicts({ work, idleMegabytes }: HTTPFigures): Verdict[] {
  return [
    ...WORKS.flatMap((kind) => verdictsOf(`http: ${TITLES[kind]}`, work[kind])),
    {
      claim: 'http: memory when idle',
      measured: `${idleMegabytes.toFixed(0)} MB`,
      target: `at most ${TARGETS.idleMebibytes} MB`,
      reached: idleMegabytes <= TARGETS.idleMebibytes,
    },
  ];
}

/** Compares the turns of each round, so that other load of the machine affects both sides. */
function verdictsOf(name: string, { apiServer, server, delays }: Compared): Verdict[] {
  const overRounds = (of: (own: Batch, other: Batch) => number): number =>
    median(server.map((own, round) => of(own, apiServer[round] ?? own)));
  const added = overRounds((own, other) => own.p50 - other.p50);
  const slowest = overRounds((own, other) => own.p99 / other.p99);
  const share = overRounds((own, other) => own.perSecond / other.perSecond);
  const delay = median(delays);
  return [
    {
      claim: `${name}, added to p50`,
      measured: fine(added),
      target: `at most ${TARGETS.addedMilliseconds} ms`,
      reached: added <= TARGETS.addedMilliseconds,
    },
    {
      claim: `${name}, p99 of the API server's`,
      measured: slowest.toFixed(2),
      target: `at most ${TARGETS.p99}`,
      reached: slowest <= TARGETS.p99,
    },
    {
      claim: `${name}, requests per second of the API server's`,
      measured: share.toFixed(2),
      target: `at least ${TARGETS.perSecond}`,
      reached: share >= TARGETS.perSecond,
    },
    {
      claim: `${name}, delay of the event loop, p99`,
      measured: fine(delay),
      target: `under ${TARGETS.delayMilliseconds} ms`,
      reached: delay < TARGETS.delayMilliseconds,
    },
  ];
}

function fine(value: number): string {
  return `${value.toFixed(1)} ms`;
}
