/** Draws results as bars, for docs/develop/performance.md. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Day } from '../worlds/demandday.ts';
import type { Clones } from './clones.ts';
import type { Fleet, Run } from './fleet.ts';
import { drawDay } from './dayplot.ts';
import { DAY_HOSTS, DAY_SLOTS, type PowerDays } from './power.ts';
import type { Pulls } from './pulls.ts';
import { median } from './verdicts.ts';
import { WAYS, type Warm } from './warm.ts';

const WIDTH = 720;
const LABEL_WIDTH = 250;
const VALUE_WIDTH = 70;
const BAR_HEIGHT = 18;
const LINE_HEIGHT = 26;
const TITLE_HEIGHT = 34;
/** Colours that can be read on light and dark pages. */
const COLOURS = { text: '#6e7781', ours: '#2da44e', others: '#8c959f' } as const;

interface Bar {
  label: string;
  value: number;
  ours: boolean;
}

interface Chart {
  file: string;
  title: string;
  unit: string;
  bars: Bar[];
}

interface Results {
  fleet?: Fleet;
  pulls?: Pulls;
  clones?: Clones[];
  power?: PowerDays;
  warm?: Warm;
}

/** Writes a file for each chart whose figures are in the results. */
export function writeCharts(folder: string, { fleet, pulls, clones, power, warm }: Results): void {
  const charts = [
    ...(fleet === undefined ? [] : fleetCharts(fleet)),
    ...(pulls === undefined ? [] : [pullsChart(pulls)]),
    ...(clones === undefined ? [] : [clonesChart(clones)]),
    ...(warm === undefined ? [] : [warmChart(warm)]),
  ];
  mkdirSync(folder, { recursive: true });
  for (const chart of charts) {
    writeFileSync(join(folder, `${chart.file}.svg`), draw(chart));
  }
  for (const [name, day] of Object.entries(power ?? {})) {
    const title = `A day of ${DAY_HOSTS} hosts, ${name === 'real' ? 'in minutes on a real cluster' : 'on virtual time'}`;
    writeFileSync(join(folder, `power-${name}.svg`), drawDay(title, day as Day, DAY_HOSTS, DAY_SLOTS));
  }
}

/** Draws the bars below each other, with label and value. The longest bar has the full width. */
function draw({ title, unit, bars }: Chart): string {
  const height = TITLE_HEIGHT + bars.length * LINE_HEIGHT;
  const most = Math.max(...bars.map(({ value }) => value));
  const lines = bars.map(({ label, value, ours }, index) => {
    const top = TITLE_HEIGHT + index * LINE_HEIGHT;
    const length = (value / most) * (WIDTH - LABEL_WIDTH - VALUE_WIDTH);
    const text = top + BAR_HEIGHT - 5;
    return [
      `  <text x="${LABEL_WIDTH - 8}" y="${text}" text-anchor="end">${escape(label)}</text>`,
      `  <rect x="${LABEL_WIDTH}" y="${top}" width="${length.toFixed(1)}" height="${BAR_HEIGHT}" fill="${ours ? COLOURS.ours : COLOURS.others}"/>`,
      `  <text x="${(LABEL_WIDTH + length + 6).toFixed(1)}" y="${text}">${shown(value)} ${unit}</text>`,
    ].join('\n');
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" font-family="sans-serif" font-size="13" fill="${COLOURS.text}">`,
    `  <title>${escape(title)}</title>`,
    `  <text x="0" y="16" font-weight="bold">${escape(title)}</text>`,
    ...lines,
    '</svg>',
    '',
  ].join('\n');
}

function shown(value: number): string {
  return value.toFixed(value < 100 ? 1 : 0);
}

function escape(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}

/**
 * Contestants of the charts, with their names for users. A bare client shows the cost of the writes alone, about which no user asks, so it
 * has no bar.
 */
const FLEET_LABELS: ReadonlyMap<string, string> = new Map([
  ['operator', 'Berth'],
  ['without policies', 'Berth without its policies'],
  ['anchor', 'operator in Go'],
]);

function fleetCharts({ vms, hosts, runs }: Fleet): Chart[] {
  const bars = (value: (run: Run) => number, figure = ''): Bar[] =>
    [...FLEET_LABELS].flatMap(([name, label]) => {
      const of = runs[name as keyof typeof runs];
      return of === undefined
        ? []
        : [{ label: label + figure, value: median(of.map(value)), ours: name !== 'anchor' }];
    });
  const title = (subject: string): string => `${vms} VMs on ${hosts} hosts: ${subject}`;
  return [
    {
      file: 'fleet-running',
      title: title('time from the creation of a VM until it runs'),
      unit: 's',
      bars: [...bars((run) => run.p50Seconds, ', p50'), ...bars((run) => run.p99Seconds, ', p99')],
    },
    {
      file: 'fleet-cpu',
      title: title('CPU time of the operator'),
      unit: 's',
      bars: bars((run) => run.cpuSeconds),
    },
    {
      file: 'fleet-memory',
      title: title('peak memory of the operator'),
      unit: 'MB',
      bars: bars((run) => run.peakMegabytes),
    },
  ];
}

function pullsChart({ rounds, dataBytes }: Pulls): Chart {
  const bar = (label: string, key: keyof Pulls['rounds'][number], ours = false): Bar => ({
    label,
    value: median(rounds.map((round) => round[key].seconds)),
    ours,
  });
  return {
    file: 'pulls',
    title: `Pull of a disk with ${(dataBytes / 1e9).toFixed(1)} GB of data`,
    unit: 's',
    bars: [
      bar('Berth’s artifact', 'artifact', true),
      bar('skopeo, not decoded', 'skopeo'),
      bar('only writing to the disk', 'disk'),
      bar('only TLS, SHA-256 and zstd', 'ceiling'),
    ],
  };
}

function clonesChart(all: readonly Clones[]): Chart {
  return {
    file: 'clones',
    title: 'Clone of a base, by its size: median',
    unit: 'ms',
    bars: all.map(({ gibibytes, milliseconds }) => ({
      label: `${gibibytes} GiB`,
      value: median(milliseconds),
      ours: true,
    })),
  };
}

const WARM_LABELS = { warm: 'from memory', resume: 'resume', cold: 'boot' } as const;

function warmChart({ groups }: Warm): Chart {
  return {
    file: 'warm',
    title: 'Start of an emulated guest until it serves a page, one at a time: median',
    unit: 's',
    bars: groups
      .filter(({ atOnce }) => atOnce === 1)
      .flatMap((group) =>
        WAYS.map((way) => ({
          label: `${WARM_LABELS[way]}, ${group.mebibytes} MiB`,
          value: median(group[way].page) / 1000,
          ours: way === 'warm',
        })),
      ),
  };
}
