/** Measures the console in Chromium, with 1,000 VMs on 250 simulated hosts, of which some change all the time. */
import { LargeConsole } from '../worlds/largeconsole.ts';
import { format, quantile } from './report.ts';
import { median, type Verdict } from './verdicts.ts';

const FLEET = { hosts: 250, vms: 1_000 } as const;
/** Seconds of changes in which the frames are measured. */
const FRAMES_SECONDS = 30;
/** Seconds of changes before the first look at the memory. They fill caches of the browser. */
const WARM_UP_SECONDS = 60;
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
  /** Sizes of the heap of the page in bytes, before and after the minutes of changes. */
  readonly heap: { readonly before: number; readonly after: number };
}

/** `minutes` is the time of changes between the two looks at the memory. */
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
  const before = await console.heap();
  await console.churn(minutes * 60);
  return { fleet, vms, minutes, heap: { before, after: await console.heap() } };
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
      ['before', size(heap.before)],
      [`after ${minutes} min of changes`, size(heap.after)],
    ]),
  ].join('\n\n');
}

export function consoleVerdicts({ fleet, vms, minutes, heap: { before, after } }: ConsoleTimes): Verdict[] {
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
      measured: (after / before).toFixed(2),
      target: `under ${TARGETS.growth}`,
      reached: after / before < TARGETS.growth,
    },
  ];
}
