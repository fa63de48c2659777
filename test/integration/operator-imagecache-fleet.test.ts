import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NODES } from '../../kube/core.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { writesByResource } from '../support/apiwrites.ts';
import { CacheEntries } from '../fixtures/cacheentries.ts';
import { CacheSimulator } from '../worlds/cachesimulator.ts';
import { JobHistory } from '../support/jobhistory.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { numbered } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

const HOSTS = 20;
const ENTRIES = 20;
const LIMIT = 5;
/** Time limit. The Jobs take the control plane 90 seconds on two cores that do much else. */
const STEADY = { deadlineMilliseconds: 240_000, intervalMilliseconds: 500 };

let cluster: Cluster;
let operator: OperatorProcess;
let simulator: CacheSimulator;
let history: JobHistory;
let entries: CacheEntries;
/** Time from the first entry until every host had every image. */
let seconds: number;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-cachefleet-${process.pid}`, hosts: HOSTS });
  simulator = await CacheSimulator.start(cluster.client());
  history = await JobHistory.start(cluster.client());
  operator = await cluster.startOperator();
  entries = new CacheEntries(cluster);
});

afterAll(async () => {
  history?.stop();
  simulator?.stop();
  await cluster?.stop();
});

describe(`${ENTRIES} entries for all of ${HOSTS} hosts`, () => {
  const names = numbered('entry', ENTRIES);

  it('settle: a Job for each entry and host, of no entry more than five at once', {
    timeout: 300_000,
  }, async () => {
    const began = performance.now();
    for (const name of names) {
      await entries.create(name, { reference: `registry.example/${name}:1`, targets: { all: true } });
    }
    await waitFor(
      'every host to have every image',
      async () => (await entries.list()).every(({ status }) => status?.cached === HOSTS),
      STEADY,
    );
    seconds = (performance.now() - began) / 1000;
    await waitFor('every Job to be gone', () => history.present === 0);
    expect(Math.max(...names.map((name) => history.mostOf(name)))).toBe(LIMIT);
    expect(simulator.done).toHaveLength(HOSTS * ENTRIES);
    expect(new Set(simulator.done).size).toBe(HOSTS * ENTRIES);
    const { items } = await cluster.client().list(NODES);
    expect(new Set(items.map(({ status }) => status?.images?.length))).toEqual(new Set([ENTRIES]));
  });

  it('most changes of a status are folded into few writes', async () => {
    const statuses = (await writesByResource(cluster)).get('imagecacheentries') ?? 0;
    process.stderr.write(
      `${HOSTS * ENTRIES} cache Jobs: ${seconds.toFixed(1)} s, ${statuses} writes of entries\n`,
    );
    expect(statuses, 'the writes of entries are counted').toBeGreaterThan(0);
    // One write for each Job would be twice as many.
    expect(statuses).toBeLessThan((HOSTS * ENTRIES) / 2);
  });

  it('has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(operator.logFile)).toEqual([]);
  });
});
