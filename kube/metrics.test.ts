import { expect, it } from 'vitest';
import { createMetrics, runtimeMetrics } from './metrics.ts';

it('names of metrics follow Prometheus: only counters end in _total', async () => {
  const text = await createMetrics().metrics();
  const types = [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name = '', type = '']) => ({
    name,
    type,
  }));
  expect(types.length).toBeGreaterThan(40);
  const wrong = types.filter(({ name, type }) => name.endsWith('_total') !== (type === 'counter'));
  expect(wrong).toEqual([]);
});

it('metrics are declared once for a registry', () => {
  const registry = createMetrics();
  expect(runtimeMetrics(registry)).toBe(runtimeMetrics(registry));
});
