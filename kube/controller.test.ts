import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Controller, type ControllerOptions, type Result } from './controller.ts';
import { ApiError, TerminalError } from './errors.ts';
import { createMetrics } from './metrics.ts';

const metrics = createMetrics();
const logger = pino({ level: 'silent' });
let end: AbortController;

beforeEach(() => {
  vi.useFakeTimers();
  end = new AbortController();
});
afterEach(() => {
  end.abort();
  vi.useRealTimers();
});

/** Creates a controller. Each test uses its own name, and therefore its own series of metrics. */
function createController(
  name: string,
  reconcile: (key: string) => Promise<Result>,
  options: Partial<ControllerOptions> = {},
): Controller {
  return new Controller({ name, workers: 2, reconcile, logger, metrics, ...options });
}

async function valueOf(metric: string, labels: Record<string, string>): Promise<number | undefined> {
  const { values = [] } = (await metrics.getSingleMetric(metric)?.get()) ?? {};
  return values.find(({ labels: have }) =>
    Object.entries(labels).every(([label, value]) => have[label] === value),
  )?.value;
}

describe('controller', () => {
  it('repeats a failed reconcile with waits that double, and starts over after a success', async () => {
    const times: number[] = [];
    const controller = createController('backoff', async () => {
      times.push(Date.now());
      if (times.length !== 4 && times.length !== 6) {
        throw new Error('not yet');
      }
      return undefined;
    });
    const waits = () => times.map((time, index) => time - (times[index - 1] ?? time));
    controller.start(end.signal);
    controller.enqueue('n/a');
    await vi.advanceTimersByTimeAsync(1_000);
    expect(waits()).toEqual([0, 5, 10, 20]);
    expect(await valueOf('controller_runtime_reconcile_errors_total', { controller: 'backoff' })).toBe(3);
    expect(await valueOf('workqueue_retries_total', { name: 'backoff' })).toBe(3);
    controller.enqueue('n/a');
    await vi.advanceTimersByTimeAsync(1_000);
    expect(waits().slice(5)).toEqual([5]);
  });

  it('logs the first conflicts of an object for developers only, and more of them as warnings', async () => {
    const levels: string[] = [];
    const write = (line: string): void => void levels.push((JSON.parse(line) as { level: string }).level);
    const formatters = { level: (label: string) => ({ level: label }) };
    const controller = createController(
      'conflicts',
      async () => {
        if (levels.length < 6) {
          throw new ApiError('the object has been modified', { status: 409, reason: 'Conflict' });
        }
        return undefined;
      },
      { logger: pino({ level: 'debug', formatters }, { write }) },
    );
    controller.start(end.signal);
    controller.enqueue('n/a');
    await vi.advanceTimersByTimeAsync(1_000);
    expect(levels).toEqual([...Array<string>(5).fill('debug'), 'warn']);
  });

  it('drops the keys of objects that are deleted before it starts, and works on their keys afterwards', async () => {
    const live = new Set(['n/a', 'n/b']);
    const seen: string[] = [];
    const reconcile = async (key: string) => {
      seen.push(key);
      return await Promise.resolve(undefined);
    };
    const controller = createController('standby', reconcile, { exists: (key) => live.has(key) });
    controller.enqueue('n/a', { urgent: true });
    controller.enqueue('n/b');
    live.clear();
    controller.enqueue('n/a');
    controller.enqueue('n/b');
    live.add('n/c');
    controller.enqueue('n/c');
    controller.start(end.signal);
    await vi.advanceTimersByTimeAsync(1_000);
    expect(seen).toEqual(['n/c']);
    live.clear();
    controller.enqueue('n/c');
    await vi.advanceTimersByTimeAsync(1_000);
    expect(seen).toEqual(['n/c', 'n/c']);
  });

  it('never waits longer than a minute', async () => {
    let runs = 0;
    const controller = createController('cap', async () => {
      runs += 1;
      throw new Error('never');
    });
    controller.start(end.signal);
    controller.enqueue('n/a');
    await vi.advanceTimersByTimeAsync(30 * 60_000);
    const before = runs;
    await vi.advanceTimersByTimeAsync(10 * 60_000);
    expect(runs - before).toBe(10);
  });

  it('counts a terminal error and does not repeat it', async () => {
    const reconcile = vi.fn(async () => {
      throw new TerminalError('no use');
    });
    const controller = createController('terminal', reconcile);
    controller.start(end.signal);
    controller.enqueue('n/a');
    await vi.advanceTimersByTimeAsync(600_000);
    expect(reconcile).toHaveBeenCalledTimes(1);
    expect(
      await valueOf('controller_runtime_terminal_reconcile_errors_total', { controller: 'terminal' }),
    ).toBe(1);
  });

  it('runs again at the requested time', async () => {
    const reconcile = vi.fn(async () => ({ requeueAfterMilliseconds: 1_000 }));
    const controller = createController('requeue', reconcile);
    controller.start(end.signal);
    controller.enqueue('n/a');
    await vi.advanceTimersByTimeAsync(3_500);
    expect(reconcile).toHaveBeenCalledTimes(4);
  });

  it('checks a cache that is behind again after 100 ms, without a reconcile', async () => {
    let ready = false;
    const reconcile = vi.fn(async () => undefined);
    const controller = createController('stale', reconcile, { ready: () => ready });
    controller.start(end.signal);
    for (let index = 0; index < 1_000; index += 1) {
      controller.enqueue(`n/${index}`);
    }
    await vi.advanceTimersByTimeAsync(250);
    expect(reconcile).not.toHaveBeenCalled();
    ready = true;
    await vi.advanceTimersByTimeAsync(100);
    expect(reconcile).toHaveBeenCalledTimes(1_000);
    expect(await valueOf('berth_stale_sync_skips_total', { controller: 'stale' })).toBe(3_000);
  });

  it('reconciles once for changes that come together, and sees own writes that come with them', async () => {
    let seen = 0;
    const reconcile = vi.fn(async () => undefined);
    const controller = createController('together', reconcile, { ready: () => seen === 2 });
    controller.start(end.signal);
    for (const change of [1, 2]) {
      // An informer does the same: it calls its handlers first and then updates its version.
      controller.enqueue('n/a');
      seen = change;
    }
    await vi.advanceTimersByTimeAsync(1);
    expect(reconcile).toHaveBeenCalledTimes(1);
    expect(await valueOf('berth_stale_sync_skips_total', { controller: 'together' })).toBe(0);
  });

  it('runs as many keys at once as it has workers, and never a key twice', async () => {
    const running = new Set<string>();
    let most = 0;
    const controller = createController('workers', async (key) => {
      expect(running.has(key)).toBe(false);
      running.add(key);
      most = Math.max(most, running.size);
      await new Promise((resolve) => setTimeout(resolve, 5));
      running.delete(key);
      return undefined;
    });
    controller.start(end.signal);
    for (const key of ['a', 'b', 'c']) {
      controller.enqueue(key);
    }
    await vi.advanceTimersByTimeAsync(1);
    for (const key of ['a', 'b', 'd']) {
      controller.enqueue(key);
    }
    await vi.advanceTimersByTimeAsync(100);
    expect(most).toBe(2);
    expect(
      await valueOf('controller_runtime_reconcile_total', { controller: 'workers', result: 'success' }),
    ).toBe(6);
    expect(await valueOf('controller_runtime_max_concurrent_reconciles', { controller: 'workers' })).toBe(2);
  });

  it('lets timers fire between many reconciles that send no request', async () => {
    vi.useRealTimers();
    const keys = Array.from({ length: 20 }, (_, number) => `n/${number}`);
    let done = 0;
    const controller = createController('turns', async () => {
      const began = performance.now();
      while (performance.now() - began < 3) {
        // A plan for many hosts takes some milliseconds.
      }
      done += 1;
      return undefined;
    });
    keys.forEach((key) => controller.enqueue(key));
    controller.start(end.signal);
    await new Promise((resolve) => setTimeout(resolve, 1));
    expect(done).toBeLessThan(keys.length);
    await expect.poll(() => done).toBe(keys.length);
  });

  it('finishes work that has begun, and begins no more, when it is stopped', async () => {
    const finish = Promise.withResolvers<undefined>();
    const reconcile = vi.fn(() => finish.promise);
    const controller = createController('drain', reconcile, { workers: 1 });
    controller.start(end.signal);
    controller.enqueue('a');
    controller.enqueue('b');
    await vi.advanceTimersByTimeAsync(0);
    end.abort();
    const drained = vi.fn<() => void>();
    const waiting = controller.drained().then(drained);
    await vi.advanceTimersByTimeAsync(100);
    expect(drained).not.toHaveBeenCalled();
    finish.resolve(undefined);
    await waiting;
    expect(reconcile).toHaveBeenCalledTimes(1);
  });

  it('shows its metrics from the start', async () => {
    createController('fresh', async () => undefined);
    const text = await metrics.metrics();
    for (const line of [
      'controller_runtime_reconcile_total{controller="fresh",result="error"} 0',
      'controller_runtime_reconcile_total{controller="fresh",result="requeue_after"} 0',
      'controller_runtime_terminal_reconcile_errors_total{controller="fresh"} 0',
      'controller_runtime_active_workers{controller="fresh"} 0',
      'controller_runtime_reconcile_time_seconds_count{controller="fresh"} 0',
      'workqueue_depth{name="fresh",controller="fresh",priority="0"} 0',
      'workqueue_adds_total{name="fresh",controller="fresh"} 0',
      'workqueue_queue_duration_seconds_count{name="fresh",controller="fresh"} 0',
    ]) {
      expect(text).toContain(line);
    }
  });
});
