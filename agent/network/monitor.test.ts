import { expect, test } from 'vitest';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { NetworkMonitor } from './monitor.ts';
import type { Network, NetworkReport } from './network.ts';

const FINE: NetworkReport = {
  healthy: true,
  repaired: [],
  faults: [],
  machines: { a: { healthy: true, message: '' } },
  refusedConnections: {},
};

test('a check that fails is a fault with its reason, which is counted and ends with the next good check', async () => {
  const checks = [() => Promise.reject(new Error('nft is busy')), () => Promise.resolve(FINE)];
  const network = { check: () => checks.shift()?.() } as unknown as Network;
  const options = { network, intervalMilliseconds: 1, logger: pino({ enabled: false }) };
  const monitor = new NetworkMonitor({ ...options, metrics: new Registry() });
  const told: NetworkReport[] = [];
  monitor.onReport = (report) => told.push(report);
  const faults = ['The network could not be checked: nft is busy'];
  expect(await monitor.check()).toMatchObject({ healthy: false, faults });
  expect(monitor.host).toEqual({ healthy: false, message: faults[0] });
  expect(monitor.faultyChecks).toBe(1);
  expect(await monitor.checkOf('a')).toEqual(FINE);
  expect(monitor.host?.healthy).toBe(true);
  expect(monitor.faultyChecks).toBe(0);
  expect(told).toHaveLength(2);
});
