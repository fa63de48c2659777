/** Measures one image for many simulated hosts, each of which takes a fixed time for it. */
import { bundle } from '../../hack/bundle.ts';
import { startCluster } from '../../hack/cluster/index.ts';
import { CacheEntries } from '../fixtures/cacheentries.ts';
import { CacheSimulator } from '../worlds/cachesimulator.ts';
import { JobHistory } from '../support/jobhistory.ts';
import { waitFor } from '../../hack/wait.ts';
import { hostsAreReady } from './contestants.ts';
import { countWrites, cpuSeconds, difference, peakMegabytes } from './measure.ts';

/** The operator's default for Jobs of one entry at the same time. */
const AT_ONCE = 5;
const HOST_MILLISECONDS = 200;
const LIMIT = { deadlineMilliseconds: 120_000, intervalMilliseconds: 20 };
/** Pattern of the periodic writes of hosts. */
const HEARTBEATS = /leases|nodes|events/;

export interface FanOut {
  hosts: number;
  atOnce: number;
  /** Seconds from the creation of the entry until its status shows that every host has the image. */
  seconds: number;
  /** Seconds that the hosts need if Jobs cost nothing. */
  idealSeconds: number;
  mostAtOnce: number;
  cpuSeconds: number;
  peakMegabytes: number;
  /** Writes of all programs, by verb and resource, until the last Job is gone. */
  writesPerHost: Record<string, number>;
}

export async function measureFanOut(hosts: number): Promise<FanOut> {
  await bundle();
  const cluster = await startCluster({ name: 'bench-cache', hosts });
  try {
    const simulator = await CacheSimulator.start(cluster.client());
    const history = await JobHistory.start(cluster.client());
    simulator.usual = { delayMilliseconds: HOST_MILLISECONDS };
    try {
      const { pid } = await cluster.startOperator({ bundle: true });
      await hostsAreReady(cluster);
      const before = { writes: await countWrites(cluster.client()), cpu: cpuSeconds(pid) };
      const entries = new CacheEntries(cluster);
      const began = performance.now();
      await entries.create('bench', { reference: 'registry.example/guest:latest', targets: { all: true } });
      await entries.waitUntilCached('bench', hosts, LIMIT);
      const seconds = (performance.now() - began) / 1000;
      await waitFor('every Job to be gone', () => history.present === 0);
      const written = difference(before.writes, await countWrites(cluster.client()));
      const counted = Object.entries(written).filter(([key]) => !HEARTBEATS.test(key));
      return {
        hosts,
        atOnce: AT_ONCE,
        seconds,
        idealSeconds: (Math.ceil(hosts / AT_ONCE) * HOST_MILLISECONDS) / 1000,
        mostAtOnce: history.mostOf('bench'),
        cpuSeconds: cpuSeconds(pid) - before.cpu,
        peakMegabytes: peakMegabytes(pid),
        writesPerHost: Object.fromEntries(counted.map(([key, count]) => [key, count / hosts])),
      };
    } finally {
      history.stop();
      simulator.stop();
    }
  } finally {
    await cluster.stop();
  }
}
