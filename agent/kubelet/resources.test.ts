import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, type MockInstance, vi } from 'vitest';
import type { MachineRecord, Runtime } from '../pods/machine.ts';
import { hostUsage, UsageReader } from '../processes/usage.ts';
import { ResourceMetrics } from './resources.ts';

vi.mock(import('../processes/usage.ts'), { spy: true });

/** Shortest time between two measurements, in milliseconds. */
const MEASURE_MILLISECONDS = 5_000;
const NOW = Date.parse('2026-01-02T03:04:05.678Z');

const logged: { msg: string; err: { message: string } }[] = [];
const logger = pino(
  {},
  { write: (line: string) => void logged.push(JSON.parse(line) as (typeof logged)[0]) },
);

/** Machines of the host: two run, one of them without a known start, and one is stopped. */
const RECORDS = [
  { uid: 'uid-1', key: 'platform-ci/one', startedAt: '2026-01-02T03:00:00.5Z' },
  { uid: 'uid-2', key: 'platform-ci/two', startedAt: undefined },
  { uid: 'uid-3', key: 'platform-ci/off', startedAt: '2026-01-02T03:00:00Z' },
] as MachineRecord[];

let metrics: ResourceMetrics;
let measured: MockInstance<UsageReader['machines']>;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['Date', 'performance'], now: NOW });
  logged.length = 0;
  vi.mocked(hostUsage).mockReset().mockResolvedValue({ cpuSeconds: 1000.25, workingSetBytes: 4096 });
  measured = vi.spyOn(UsageReader.prototype, 'machines').mockResolvedValue(
    new Map([
      ['uid-1', { cpuSeconds: 12.5, workingSetBytes: 1000 }],
      ['uid-2', { cpuSeconds: 2, workingSetBytes: 2000 }],
    ]),
  );
  const runtime = (record: MachineRecord): Runtime =>
    ({
      folder: { uid: record.uid, path: '' },
      state: record.uid === 'uid-3' ? { kind: 'stopped' } : { kind: 'running', pid: 42 },
    }) as unknown as Runtime;
  metrics = new ResourceMetrics({
    host: { records: { list: () => RECORDS } as never },
    machines: { runtime },
    logger,
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

it('are the series of a kubelet for the host and each machine that runs', async () => {
  expect(await metrics.text()).toBe(`\
# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="machine",namespace="platform-ci",pod="one"} 12.5 1767323045678
container_cpu_usage_seconds_total{container="machine",namespace="platform-ci",pod="two"} 2 1767323045678
# HELP container_memory_working_set_bytes Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="machine",namespace="platform-ci",pod="one"} 1000 1767323045678
container_memory_working_set_bytes{container="machine",namespace="platform-ci",pod="two"} 2000 1767323045678
# HELP container_start_time_seconds Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="machine",namespace="platform-ci",pod="one"} 1767322800.5
# HELP node_cpu_usage_seconds_total Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1000.25 1767323045678
# HELP node_memory_working_set_bytes Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 4096 1767323045678
# HELP pod_cpu_usage_seconds_total Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="platform-ci",pod="one"} 12.5 1767323045678
pod_cpu_usage_seconds_total{namespace="platform-ci",pod="two"} 2 1767323045678
# HELP pod_memory_working_set_bytes Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="platform-ci",pod="one"} 1000 1767323045678
pod_memory_working_set_bytes{namespace="platform-ci",pod="two"} 2000 1767323045678
# HELP resource_scrape_error 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`);
  const running = measured.mock.calls[0]?.[0];
  expect(running?.map(({ uid, pid }) => [uid, pid])).toEqual([
    ['uid-1', 42],
    ['uid-2', 42],
  ]);
});

it('are measured at most once in 5 s, however many callers ask', async () => {
  const first = await Promise.all([metrics.text(), metrics.text()]);
  vi.advanceTimersByTime(MEASURE_MILLISECONDS - 1);
  expect([await metrics.text(), ...first]).toEqual([first[0], first[0], first[0]]);
  expect(hostUsage).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1);
  expect(await metrics.text()).toContain('node_memory_working_set_bytes 4096 1767323050678\n');
  expect(hostUsage).toHaveBeenCalledTimes(2);
});

it('say so when the host cannot be measured, and the log says why', async () => {
  vi.mocked(hostUsage).mockRejectedValue(new Error('no /proc'));
  expect((await metrics.text()).split('\n').filter((line) => !line.startsWith('#'))).toEqual([
    'resource_scrape_error 1',
    '',
  ]);
  expect(logged.map(({ err }) => err.message)).toEqual(['no /proc']);
});
