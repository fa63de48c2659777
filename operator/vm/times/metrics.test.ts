import { Registry } from 'prom-client';
import { expect, it } from 'vitest';
import { JobTimeMetrics } from './metrics.ts';

/** Returns the sums and counts that a scrape shows. */
async function scrape(registry: Registry): Promise<string[]> {
  return (await registry.metrics()).split('\n').filter((line) => /_(?:sum|count)\{/.test(line));
}

it('begins the series of a namespace with zero, counts its jobs, and forgets it', async () => {
  const registry = new Registry();
  const metrics = new JobTimeMetrics(registry);
  metrics.expect('shop');
  const lines = (waits: number, seconds: number) => [
    `berth_job_wait_seconds_sum{vm_namespace="shop"} ${seconds}`,
    `berth_job_wait_seconds_count{vm_namespace="shop"} ${waits}`,
    'berth_job_run_seconds_sum{vm_namespace="shop"} 0',
    'berth_job_run_seconds_count{vm_namespace="shop"} 0',
  ];
  expect(await scrape(registry)).toEqual(lines(0, 0));
  metrics.observe('shop', 'waited', 4);
  metrics.expect('shop');
  // A clock that was set back makes negative times.
  metrics.observe('shop', 'waited', -3);
  expect(await scrape(registry)).toEqual(lines(2, 4));
  metrics.forget('shop');
  expect(await scrape(registry)).toEqual([]);
});
