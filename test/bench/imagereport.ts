/** Shows the results of images as tables for people. The same numbers are printed as JSON. */
import type { Clones } from './clones.ts';
import type { FanOut } from './fanout.ts';
import type { Measured, Pulls } from './pulls.ts';
import { format, milliseconds, quantile, seconds } from './report.ts';
import type { SharedCopies } from './sharedcopies.ts';
import { median, type Verdict } from './verdicts.ts';

/** Targets. */
const TARGETS = { ofCeiling: 0.8, ofSkopeo: 1, peakMegabytes: 256, cloneOfSmallest: 2, ofCp: 0.8 } as const;
const MEGABYTE = 1e6;

export function pullsTable(pulls: Pulls): string {
  const { virtualBytes, dataBytes, artifactBytes, publish, rounds, containerDisk, large } = pulls;
  const { artifact, skopeo, disk, ceiling } = mediansOf(pulls);
  const row = (label: string, measured: Measured): string[] => [
    label,
    seconds(measured.seconds),
    (dataBytes / MEGABYTE / measured.seconds).toFixed(0),
    measured.cpuSeconds === undefined ? '' : seconds(measured.cpuSeconds),
    measured.peakMegabytes === undefined ? '' : `${measured.peakMegabytes.toFixed(0)} MB`,
  ];
  const size = `${gigabytes(virtualBytes)} disk, ${gigabytes(dataBytes)} of data in ${gigabytes(artifactBytes)}`;
  return format([
    [`pull of a ${size}, median of ${rounds.length}`, 'time', 'MB/s of data', 'CPU time', 'peak memory'],
    row('Berth’s artifact', artifact),
    row('skopeo copy of its blobs, not decoded', skopeo),
    row('only writing the data to the disk', disk),
    row('only TLS, SHA-256 and zstd, thrown away', ceiling),
    row('containerDisk', containerDisk.pull),
    row('skopeo copy of its blobs, not decoded', containerDisk.skopeo),
    row('publishing Berth’s artifact', publish),
    ...Object.entries(large).map(([work, { seconds: time, cpuSeconds = 0, peakMegabytes = 0 }]) => [
      `${work} of a disk of 100 GiB, most of it holes`,
      seconds(time),
      '',
      seconds(cpuSeconds),
      `${peakMegabytes.toFixed(0)} MB`,
    ]),
  ]);
}

export function pullsVerdicts(pulls: Pulls): Verdict[] {
  const { artifact, skopeo, disk, ceiling } = mediansOf(pulls);
  const { publish, containerDisk, large } = pulls;
  const memory = ([what, { peakMegabytes = Number.NaN }]: readonly [string, Measured]): Verdict => ({
    claim: `pulls: peak memory, ${what}`,
    measured: `${peakMegabytes.toFixed(0)} MB`,
    target: `at most ${TARGETS.peakMegabytes} MB`,
    reached: peakMegabytes <= TARGETS.peakMegabytes,
  });
  const least = Math.max(disk.seconds, ceiling.seconds);
  return [
    atLeast(
      'pulls: speed beside the slower of disk and processors',
      least / artifact.seconds,
      TARGETS.ofCeiling,
    ),
    atLeast('pulls: speed beside skopeo', skopeo.seconds / artifact.seconds, TARGETS.ofSkopeo),
    ...(
      [
        ['artifact', artifact],
        ['containerDisk', containerDisk.pull],
        ['publishing', publish],
        ['100 GiB', large.pull],
        ['publishing 100 GiB', large.publish],
      ] as const
    ).map(memory),
  ];
}

export function clonesTable(all: readonly Clones[]): string {
  return format([
    [`clone of a base, ${all[0]?.milliseconds.length} each`, 'least', 'median', 'p90'],
    ...all.map(({ gibibytes, milliseconds: values }) => [
      `${gibibytes} GiB`,
      ...[0, 0.5, 0.9].map((part) => milliseconds(quantile(values, part))),
    ]),
  ]);
}

/** A clone of a large base must take as long as that of a small one. */
export function clonesVerdicts(all: readonly Clones[]): Verdict[] {
  const medians = all.map(({ milliseconds: values }) => median(values));
  const value = Math.max(...medians) / (medians[0] ?? Number.NaN);
  return [
    {
      claim: 'clones: slowest size beside the smallest',
      measured: ratio(value),
      target: `at most ${TARGETS.cloneOfSmallest}`,
      reached: value <= TARGETS.cloneOfSmallest,
    },
  ];
}

export function sharedCopiesTable({ bytes, rounds }: SharedCopies): string {
  const row = (label: string, values: readonly number[]): string[] => [
    label,
    seconds(median(values)),
    (bytes / MEGABYTE / median(values)).toFixed(0),
  ];
  return format([
    [`copy of a shared file of ${gigabytes(bytes)}, median of ${rounds.length}`, 'time', 'MB/s'],
    row(
      'into the store of a host, with its digest',
      rounds.map(({ store }) => store),
    ),
    row(
      'cp and sync',
      rounds.map(({ cp }) => cp),
    ),
  ]);
}

/** The copy of a file with its digest must be almost as fast as a copy without a digest. */
export function sharedCopiesVerdicts({ rounds }: SharedCopies): Verdict[] {
  const [cp, store] = [median(rounds.map((one) => one.cp)), median(rounds.map((one) => one.store))];
  return [atLeast('copies: speed beside cp and sync', cp / store, TARGETS.ofCp)];
}

export function fanOutTable({ hosts, writesPerHost, ...fanOut }: FanOut): string {
  const all = Object.values(writesPerHost).reduce((sum, count) => sum + count, 0);
  return format([
    [`an image onto ${hosts} simulated hosts`, 'measured'],
    ['create to all Cached', seconds(fanOut.seconds)],
    ['the same if Jobs cost nothing', seconds(fanOut.idealSeconds)],
    ['Jobs at once', String(fanOut.mostAtOnce)],
    ['CPU time of the operator', seconds(fanOut.cpuSeconds)],
    ['peak memory of the operator', `${fanOut.peakMegabytes.toFixed(0)} MB`],
    ['writes per host', all.toFixed(2)],
    ...Object.keys(writesPerHost)
      .toSorted()
      .map((kind) => [`  ${kind} per host`, (writesPerHost[kind] ?? 0).toFixed(2)]),
  ]);
}

export function fanOutVerdicts({ atOnce, mostAtOnce }: FanOut): Verdict[] {
  return [
    {
      claim: 'fanout: Jobs at once',
      measured: String(mostAtOnce),
      target: `at most ${atOnce}`,
      reached: mostAtOnce <= atOnce,
    },
  ];
}

function mediansOf({ rounds }: Pulls): Pulls['rounds'][number] {
  const of = (key: keyof Pulls['rounds'][number]): Measured => together(rounds.map((round) => round[key]));
  return { artifact: of('artifact'), skopeo: of('skopeo'), disk: of('disk'), ceiling: of('ceiling') };
}

/** Returns the median of each value. For memory it returns the largest value. */
function together(all: readonly Measured[]): Measured {
  const of = (key: 'seconds' | 'cpuSeconds' | 'peakMegabytes' | 'bytes'): number[] =>
    all.flatMap((one) => one[key] ?? []);
  const [cpu, memory] = [of('cpuSeconds'), of('peakMegabytes')];
  return {
    seconds: median(of('seconds')),
    bytes: median(of('bytes')),
    ...(cpu.length > 0 ? { cpuSeconds: median(cpu) } : {}),
    ...(memory.length > 0 ? { peakMegabytes: Math.max(...memory) } : {}),
  };
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

function ratio(value: number): string {
  return value.toFixed(2);
}

function atLeast(claim: string, value: number, target: number): Verdict {
  return { claim, measured: ratio(value), target: `at least ${target}`, reached: value >= target };
}
