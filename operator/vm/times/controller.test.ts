import { type Logger, pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { JOB_TIMES_MILLISECONDS, JOB_TIMES_NAMESPACES } from '../../../api/v1alpha1/jobtimelimits.ts';
import { type JobTimes, parseJobTimes } from '../../../api/v1alpha1/jobtimes.ts';
import { timestamp } from '../../../base/time.ts';
import type { KubeClient } from '../../../kube/client.ts';
import { Controller } from '../../../kube/controller.ts';
import type { Namespace } from '../../../kube/core.ts';
import type { Informer } from '../../../kube/informer.ts';
import { createMetrics } from '../../../kube/metrics.ts';
import { parseConfig } from '../../config/config.ts';
import { Registry } from 'prom-client';
import { enqueueJobTimes, JobTimesReconciler } from './controller.ts';
import { JobTimeMetrics } from './metrics.ts';

const NOW = Date.parse('2026-11-30T12:00:00Z');
const EARLIER: JobTimes = {
  namespaceUid: 'uid of shop',
  begunAt: timestamp(NOW - 3_600_000),
  entries: [[NOW / JOB_TIMES_MILLISECONDS - 1, 1, 4, 4, 0, 0, 0]],
};

let end: AbortController;

beforeEach(() => {
  vi.useFakeTimers({ now: NOW });
  end = new AbortController();
});

afterEach(() => {
  end.abort();
  vi.useRealTimers();
});

/** An operator that has become the leader in these namespaces, after another process that has stored the times. */
function lead(namespaces: readonly string[], stored: Readonly<Record<string, JobTimes>> = {}) {
  const data = new Map<string, string | null>(
    Object.entries(stored).map(([name, times]) => [name, JSON.stringify(times)]),
  );
  const client = {
    get: async () => await Promise.resolve({ data: Object.fromEntries(data) }),
    mergePatch: async (_type: unknown, _ref: unknown, patch: { data: Record<string, string | null> }) => {
      Object.entries(patch.data).forEach(([name, text]) => data.set(name, text));
      return await Promise.resolve({});
    },
  };
  const warn = vi.fn<() => void>();
  const get = (name: string) =>
    namespaces.includes(name) ? { metadata: { name, uid: `uid of ${name}` } } : undefined;
  const registry = new Registry();
  const times = new JobTimesReconciler({
    client: client as unknown as KubeClient,
    config: parseConfig({}, 'test'),
    namespaces: { cache: { get } } as unknown as Informer<Namespace>,
    logger: { warn } as unknown as Logger,
    metrics: new JobTimeMetrics(registry),
    clock: () => Date.now(),
    isLeader: () => true,
  });
  const controller = new Controller({
    name: 'jobtimes',
    workers: 1,
    reconcile: times.reconcile.bind(times),
    logger: pino({ level: 'silent' }),
    metrics: createMetrics(),
  });
  enqueueJobTimes(controller, times);
  controller.start(end.signal);
  return { times, warn, registry, stored: (name: string) => parseJobTimes(data.get(name) ?? '') };
}

it('stores at the start of leading since when it measures, also if no job ends', async () => {
  const { times, stored } = lead(['shop'], { shop: EARLIER });
  await vi.advanceTimersByTimeAsync(1_000);
  expect(stored('shop')).toEqual({ ...EARLIER, begunAt: timestamp(NOW) });
  await vi.advanceTimersByTimeAsync(600_000);
  times.add('shop', 'ran', 60);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(stored('shop')).toMatchObject({ begunAt: timestamp(NOW), entries: { length: 2 } });
});

it('keeps no times of a namespace that was deleted', async () => {
  const { times, stored } = lead(['shop'], { shop: EARLIER, gone: EARLIER });
  await vi.advanceTimersByTimeAsync(1_000);
  expect([stored('shop')?.entries, stored('gone')]).toEqual([EARLIER.entries, undefined]);
  times.add('gone', 'ran', 60);
  await vi.advanceTimersByTimeAsync(120_000);
  expect(stored('gone')).toBeUndefined();
});

it('gives a namespace none of the times of another one that had its name before', async () => {
  const { times, stored } = lead(['shop'], { shop: { ...EARLIER, namespaceUid: 'uid of an earlier shop' } });
  await vi.advanceTimersByTimeAsync(1_000);
  expect(stored('shop')).toBeUndefined();
  times.add('shop', 'ran', 60);
  await vi.advanceTimersByTimeAsync(120_000);
  expect(stored('shop')).toMatchObject({ namespaceUid: 'uid of shop', entries: { length: 1 } });
});

it('warns once of namespaces for which there is no place, and again after one has gone', () => {
  const names = Array.from({ length: JOB_TIMES_NAMESPACES + 2 }, (_, number) => `platform-${number}`);
  const { times, warn } = lead(names);
  const addAll = () => names.forEach((name) => times.add(name, 'ran', 60));
  addAll();
  addAll();
  expect(warn).toHaveBeenCalledTimes(1);
  times.forget('platform-0');
  addAll();
  expect(warn).toHaveBeenCalledTimes(2);
});
