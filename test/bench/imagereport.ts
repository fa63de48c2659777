/** What was measured of images as tables for people; the same numbers are printed as JSON. */
import type { Clones } from './clones.ts';
import type { FanOut } from './fanout.ts';
import type { Measured, Pulls } from './pulls.ts';
import { format, milliseconds, quantile, seconds } from './report.ts';

/** What is to be reached. */
const TARGETS = { ofCeiling: 0.8, peakMegabytes: 256 } as const;
const MEGABYTE = 1e6;

export function pullsTable({
  virtualBytes,
  dataBytes,
  artifactBytes,
  publish,
  rounds,
  containerDisk,
}: Pulls): string {
  const of = (key: keyof Pulls['rounds'][number]): Measured => together(rounds.map((round) => round[key]));
  const [artifact, skopeo, disk, ceiling] = [of('artifact'), of('skopeo'), of('disk'), of('ceiling')];
  const least = Math.max(disk.seconds, ceiling.seconds);
  const row = (label: string, measured: Measured, target = ''): string[] => [
    label,
    seconds(measured.seconds),
    (dataBytes / MEGABYTE / measured.seconds).toFixed(0),
    measured.cpuSeconds === undefined ? '' : seconds(measured.cpuSeconds),
    measured.peakMegabytes === undefined ? '' : `${measured.peakMegabytes.toFixed(0)} MB`,
    target,
  ];
  const title = `pull of a ${gigabytes(virtualBytes)} disk, ${gigabytes(dataBytes)} of data in ${gigabytes(artifactBytes)}`;
  const memory = `at most ${TARGETS.peakMegabytes} MB`;
  return format([
    [title, 'time', 'MB/s of data', 'CPU time', 'peak memory', 'target'],
    row('Berth’s artifact', artifact, memory),
    row('skopeo copy of its blobs, not decoded', skopeo),
    row('only writing the data to the disk', disk),
    row('only TLS, SHA-256 and zstd, thrown away', ceiling),
    [
      'of the slower of these two',
      ratio(least / artifact.seconds),
      '',
      '',
      '',
      `at least ${TARGETS.ofCeiling}`,
    ],
    ['of skopeo', ratio(skopeo.seconds / artifact.seconds), '', '', '', 'at least 1'],
    row('containerDisk', containerDisk.pull, memory),
    row('skopeo copy of its blobs, not decoded', containerDisk.skopeo),
    row('publishing Berth’s artifact', publish, memory),
  ]);
}

export function clonesTable(all: readonly Clones[]): string {
  return format([
    [`clone of a base, ${all[0]?.milliseconds.length} each`, 'least', 'median', 'p90', 'target'],
    ...all.map(({ gibibytes, milliseconds: values }) => [
      `${gibibytes} GiB`,
      ...[0, 0.5, 0.9].map((part) => milliseconds(quantile(values, part))),
      'the same for all',
    ]),
  ]);
}

export function fanOutTable(fanOut: FanOut): string {
  const { hosts, atOnce, writesPerHost } = fanOut;
  const all = Object.values(writesPerHost).reduce((sum, count) => sum + count, 0);
  return format([
    [`an image onto ${hosts} simulated hosts`, 'measured', 'target'],
    ['create to all Cached', seconds(fanOut.seconds), `${seconds(fanOut.idealSeconds)} if Jobs cost nothing`],
    ['Jobs at once', String(fanOut.mostAtOnce), `at most ${atOnce}`],
    ['CPU time of the operator', seconds(fanOut.cpuSeconds), ''],
    ['peak memory of the operator', `${fanOut.peakMegabytes.toFixed(0)} MB`, ''],
    ['writes per host', all.toFixed(2), ''],
    ...Object.keys(writesPerHost)
      .toSorted()
      .map((kind) => [`  ${kind} per host`, (writesPerHost[kind] ?? 0).toFixed(2), '']),
  ]);
}

/** The mean of each but memory, of which the most counts. */
function together(all: readonly Measured[]): Measured {
  const of = (key: 'seconds' | 'cpuSeconds' | 'peakMegabytes' | 'bytes'): number[] =>
    all.flatMap((one) => one[key] ?? []);
  const mean = (values: readonly number[]): number =>
    values.reduce((sum, value) => sum + value, 0) / values.length;
  const [cpu, memory] = [of('cpuSeconds'), of('peakMegabytes')];
  return {
    seconds: mean(of('seconds')),
    bytes: mean(of('bytes')),
    ...(cpu.length > 0 ? { cpuSeconds: mean(cpu) } : {}),
    ...(memory.length > 0 ? { peakMegabytes: Math.max(...memory) } : {}),
  };
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

function ratio(value: number): string {
  return value.toFixed(2);
}
