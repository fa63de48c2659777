/**
 * Measures the CPU time of a controller for one key, and the share of p-queue, which runs its workers, by work through a second p-queue.
 */
import PQueue from 'p-queue';
import { pino } from 'pino';
import { Controller } from '../../kube/controller.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { format } from './report.ts';
import { median } from './verdicts.ts';

const KEYS = 100_000;
/** Number of workers, as in the operator by default. */
const WORKERS = 16;
/** The first round is not counted, because V8 compiles the code in it. */
const ROUNDS = 6;

export interface Workers {
  /** Medians of the CPU time for one key, in microseconds. */
  controllerMicroseconds: number;
  secondQueueMicroseconds: number;
}

/** Measures both in turns. The work of a key is empty. */
export async function measureWorkers(): Promise<Workers> {
  const controller: number[] = [];
  const secondQueue: number[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    controller.push(await microsecondsPerKey((work) => work()));
    const queue = new PQueue({ concurrency: WORKERS });
    secondQueue.push(await microsecondsPerKey((work) => queue.add(work)));
  }
  return {
    controllerMicroseconds: median(controller.slice(1)),
    secondQueueMicroseconds: median(secondQueue.slice(1)),
  };
}

async function microsecondsPerKey(run: (work: () => Promise<void>) => Promise<void>): Promise<number> {
  const stop = new AbortController();
  const { promise: finished, resolve: finish } = Promise.withResolvers<void>();
  let done = 0;
  const work = async (): Promise<void> => {
    await Promise.resolve();
    done += 1;
    if (done === KEYS) {
      finish();
    }
  };
  const controller = new Controller({
    name: 'bench',
    workers: WORKERS,
    reconcile: async () => {
      await run(work);
      return undefined;
    },
    logger: pino({ level: 'silent' }),
    metrics: createMetrics(),
  });
  const before = process.cpuUsage();
  for (let key = 0; key < KEYS; key += 1) {
    controller.enqueue(`namespace/vm-${key}`);
  }
  controller.start(stop.signal);
  await finished;
  const { user, system } = process.cpuUsage(before);
  stop.abort();
  await controller.drained();
  return (user + system) / KEYS;
}

export function workersTable({ controllerMicroseconds, secondQueueMicroseconds }: Workers): string {
  const share = secondQueueMicroseconds - controllerMicroseconds;
  return format([
    [`CPU time per key, ${KEYS} keys`, 'controller', 'with a second p-queue', 'one p-queue'],
    [
      'queue of keys, workers and metrics',
      ...[controllerMicroseconds, secondQueueMicroseconds, share].map((value) => `${value.toFixed(1)} µs`),
    ],
  ]);
}
