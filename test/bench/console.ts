/** Measures the console in Chromium, with 1,000 VMs on 250 simulated hosts, of which some change all the time. */
import { LargeConsole } from '../worlds/largeconsole.ts';
import { format, quantile } from './report.ts';
import { median, type Verdict } from './verdicts.ts';

const FLEET = { hosts: 250, vms: 1_000 } as const;
/** Seconds of changes in which the frames are measured. */
const FRAMES_SECONDS = 30;
/** Seconds of changes before the first look at the memory. They fill caches of the browser. */
const WARM_UP_SECONDS = 60;
/** Number of looks at the memory after the first. A heap that grows without end differs from one that fills. */
const LOOKS = 10;
const TARGETS = { frameMilliseconds: 50, growth: 1.1 } as const;
const MEBIBYTE = 1024 * 1024;

interface PageFrames {
  /** Milliseconds between two frames while the page scrolls. */
  readonly median: number;
  readonly p95: number;
  /** Largest number of rows in the page. */
  readonly rows: number;
}

export interface ConsoleTimes {
  readonly fleet: PageFrames;
  readonly vms: PageFrames;
  readonly minutes: number;
  /** Sizes of the heap of the page in bytes: before the changes, and at equal distances in these minutes, the last one after them. */
  readonly heap: readonly number[];
}

/** `minutes` is the time of changes between the first and the last look at the memory. */
export async function measureConsole(minutes: number): Promise<ConsoleTimes> {
  await using console = await LargeConsole.start(FLEET);
  const measure = async (address: string): Promise<PageFrames> => {
    await console.show(address);
    const { frames, rows } = await console.watch(FRAMES_SECONDS, { scrolls: true });
    return { median: median(frames), p95: quantile(frames, 0.95), rows };
  };
  const fleet = await measure('#/fleet');
  const vms = await measure('#/vms');
  await console.churn(WARM_UP_SECONDS);
  const heap = [await console.heap()];
  while (heap.length <= LOOKS) {
    await console.churn((minutes * 60) / LOOKS);
    heap.push(await console.heap());
  }
  return { fleet, vms, minutes, heap };
}

export function consoleTable({ fleet, vms, minutes, heap }: ConsoleTimes): string {
  const row = (name: string, { median: half, p95, rows }: PageFrames) => [
    name,
    `${half.toFixed(1)} ms`,
    `${p95.toFixed(1)} ms`,
    String(rows),
  ];
  const size = (bytes: number) => `${(bytes / MEBIBYTE).toFixed(1)} MiB`;
  return [
    format([
      ['console while it scrolls', 'frame, median', 'p95', 'rows'],
      row('fleet', fleet),
      row('VMs', vms),
    ]),
    format([
      ['heap of the page', ''],
      ...heap.map((bytes, look) => [
        `after ${((minutes * look) / LOOKS).toFixed(1)} min of changes`,
        size(bytes),
      ]),
    ]),
  ].join('\n\n');
}

export function consoleVerdicts({ fleet, vms, minutes, heap }: ConsoleTimes): Verdict[] {
  const [before = Number.NaN] = heap;
  const growth = (heap.at(-1) ?? Number.NaN) / before;
  const slowest = Math.max(fleet.p95, vms.p95);
  return [
    {
      claim: 'console: time of a frame, p95',
      measured: `${slowest.toFixed(1)} ms`,
      target: `under ${TARGETS.frameMilliseconds} ms`,
      reached: slowest < TARGETS.frameMilliseconds,
    },
    {
      claim: `console: heap after ${minutes} min, to that before`,
      measured: growth.toFixed(2),
      target: `under ${TARGETS.growth}`,
      reached: growth < TARGETS.growth,
    },
  ];
}
