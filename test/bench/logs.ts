/** Measures how long readers of a console delay the agent's event loop, on which its Lease depends. */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { pino } from 'pino';
import { ConsoleStore } from '../../agent/console/store.ts';
import { STORE_FILES } from '../../agent/console/records.ts';
import { format, milliseconds } from './report.ts';
import type { Verdict } from './verdicts.ts';

/** Two full files of a store with the shortest records. */
const FILE_BYTES = 4 * 1024 * 1024;
const EMPTY_LINE = '2026-01-01T00:00:00.000Z F \n';
const NANOSECONDS_A_MILLISECOND = 1e6;
const TARGET_MILLISECONDS = 50;

export interface LogReads {
  readers: number;
  /** Seconds until the last reader had its last line. */
  totalMilliseconds: number;
  /** Longest time for which no other work could run, in seconds. */
  worstDelayMilliseconds: number;
}

/** Lets `readers` clients read the last line of 8 MiB of empty lines at the same time. */
export async function measureLogReads(parent: string, readers: number): Promise<LogReads> {
  const folder = await mkdtemp(join(parent, 'berth-bench-logs-'));
  const store = new ConsoleStore(folder, { of: 'task', logger: pino({ level: 'silent' }) });
  try {
    await mkdir(join(folder, 'console'));
    for (const name of STORE_FILES) {
      await writeFile(join(folder, 'console', name), EMPTY_LINE.repeat(FILE_BYTES / EMPTY_LINE.length));
    }
    await lastLine(store);
    const delay = monitorEventLoopDelay({ resolution: 1 });
    delay.enable();
    const began = performance.now();
    await Promise.all(Array.from({ length: readers }, () => lastLine(store)));
    const totalMilliseconds = performance.now() - began;
    delay.disable();
    return { readers, totalMilliseconds, worstDelayMilliseconds: delay.max / NANOSECONDS_A_MILLISECOND };
  } finally {
    store.close();
    await rm(folder, { recursive: true, force: true });
  }
}

export function logReadsTable({ readers, totalMilliseconds, worstDelayMilliseconds }: LogReads): string {
  return format([
    [`${readers} readers of the last line of 8 MiB`, 'measured'],
    ['until the last has it', milliseconds(totalMilliseconds)],
    ['longest delay of the event loop', milliseconds(worstDelayMilliseconds)],
  ]);
}

export function logReadsVerdicts({ worstDelayMilliseconds }: LogReads): Verdict[] {
  return [
    {
      claim: 'logs: longest delay of the event loop',
      measured: milliseconds(worstDelayMilliseconds),
      target: `under ${TARGET_MILLISECONDS} ms`,
      reached: worstDelayMilliseconds < TARGET_MILLISECONDS,
    },
  ];
}

async function lastLine(store: ConsoleStore): Promise<void> {
  let text = '';
  for await (const piece of store.read({ tailLines: 1 })) {
    text += piece;
  }
  if (text !== '\n') {
    throw new Error(`the last line was ${JSON.stringify(text.slice(0, 80))}`);
  }
}
