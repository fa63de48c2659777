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

/** Returns a monitor of a network whose checks give these results, one after another, and the list of its reports. */
function monitorOf(...checks: (() => Promise<NetworkReport>)[]): [NetworkMonitor, NetworkReport[]] {
  const network = { check: () => checks.shift()?.() } as unknown as Network;
  const options = { network, intervalMilliseconds: 1, logger: pino({ enabled: false }) };
  const monitor = new NetworkMonitor({ ...options, metrics: new Registry() });
  const reported: NetworkReport[] = [];
  monitor.onReport = (report) => reported.push(report);
  return [monitor, reported];
}

const fails = (): Promise<NetworkReport> => Promise.reject(new Error('nft is busy'));
const succeeds = (): Promise<NetworkReport> => Promise.resolve(FINE);

test('a check that fails is a fault with its reason, which is counted and ends with the next good check', async () => {
  const [monitor, reported] = monitorOf(fails, succeeds);
  const faults = ['The network could not be checked: nft is busy'];
  expect(await monitor.check()).toMatchObject({ healthy: false, faults });
  expect(monitor.host).toEqual({ healthy: false, message: faults[0] });
  expect(monitor.faultyChecks).toBe(1);
  expect(await monitor.checkOf('a')).toEqual(FINE);
  expect(monitor.host?.healthy).toBe(true);
  expect(monitor.faultyChecks).toBe(0);
  expect(reported).toHaveLength(2);
});

test('a fault of one machine is not counted as a fault of the whole network, because the host still takes VMs', async () => {
  const own = { healthy: true, faults: ['Machine a: its port leads nowhere'] };
  const general = { healthy: false, faults: ['Device berth0 is foreign'] };
  const reports = [FINE, { ...FINE, ...own }, { ...FINE, ...general }];
  const network = { check: () => Promise.resolve(reports.shift()) } as unknown as Network;
  const metrics = new Registry();
  const logger = pino({ enabled: false });
  const monitor = new NetworkMonitor({ network, intervalMilliseconds: 1, logger, metrics });
  while (reports.length > 0) {
    await monitor.check();
  }
  const { values } = await metrics.getSingleMetric('berth_agent_network_checks_total')!.get();
  expect(values.map(({ labels, value }) => [labels['result'], value])).toEqual([
    ['healthy', 1],
    ['repaired', 0],
    ['machine_faulty', 1],
    ['faulty', 1],
  ]);
});

test('checks that fail for the same reason write one line to the log', async () => {
  const lines: string[] = [];
  const logger = pino({ base: null, timestamp: false }, { write: (line) => lines.push(line) });
  const otherwise = (): Promise<NetworkReport> => Promise.reject(new Error('nft is missing'));
  const checks = [fails, fails, otherwise, succeeds, fails];
  const network = { check: () => checks.shift()?.() } as unknown as Network;
  const monitor = new NetworkMonitor({ network, intervalMilliseconds: 1, logger, metrics: new Registry() });
  while (checks.length > 0) {
    await monitor.check();
  }
  const written = lines.map((line) => (JSON.parse(line) as { err?: { message: string } }).err?.message);
  expect(written).toEqual(['nft is busy', 'nft is missing', 'nft is busy']);
});

test('a check for a machine that fails is one faulty check', async () => {
  const [monitor, reported] = monitorOf(fails, fails);
  expect(await monitor.checkOf('a')).toMatchObject({ healthy: false });
  expect(monitor.faultyChecks).toBe(1);
  expect(reported).toHaveLength(1);
});

test('a check that began before the machine was attached is followed by another', async () => {
  const [monitor, reported] = monitorOf(() => Promise.resolve({ ...FINE, machines: {} }), succeeds);
  expect(await monitor.checkOf('a')).toEqual(FINE);
  expect(reported).toHaveLength(2);
});
