/** VMPools with a real API server, scheduler, operator and HTTP API. The hosts are simulated, so VMs become Ready within a second. */
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Claim, claimVM, membersBy } from '../../actions/claim.ts';
import { parseJobTimes } from '../../api/v1alpha1/jobtimes.ts';
import {
  CLAIMED_BY_ANNOTATION,
  CLAIMED_FROM_LABEL,
  JOB_TIMES,
  POOL_LABEL,
} from '../../api/v1alpha1/names.ts';
import { poolUidOf } from '../../api/v1alpha1/poolmembers.ts';
import { VM_POOLS, VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMPool, VMPoolSpec } from '../../api/v1alpha1/vmpool.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { readData } from '../../kube/configmapdata.ts';
import { EVENTS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { conditionIn } from '../../operator/objects/conditions.ts';
import { exampleCommands, exampleObjects, type Replaced } from '../fixtures/examples.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { accountToken } from '../support/members.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { BerthCommand } from '../wires/berth.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { ExternalMetrics } from '../worlds/externalmetrics.ts';

/** ARM hosts, which have room for 15 small VMs each, and slots of the one host of the other architecture. */
const HOSTS = 3;
const SLOTS = 15;
const FEW_SLOTS = 2;
const namespace = 'platform-default';
const PATIENCE = { deadlineMilliseconds: 40_000 };
/** Clients that claim at the same time, the number of their claims, and the number of VMs for them. */
const CLIENTS = 10;
const CLAIMS = 40;
const READY = 20;
/** Bounds of an autoscaler. */
const SCALED = { least: 2, most: 5 } as const;
/** Name of the test in the cluster. */
const USER = 'berth-admin';
const NEVER = new AbortController().signal;
/** Longest time in milliseconds until a VM runs that waits for the VMs of a pool. */
const YIELD_MILLISECONDS = 5_000;

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-pools-${process.pid}` });
  await cluster.addHosts(HOSTS, { slots: undefined });
  operator = await cluster.startOperator({
    config: { osx_node_platform_quota_pod: SLOTS, x86_node_platform_quota_pod: FEW_SLOTS },
  });
  await cluster.addHosts(1, { prefix: 'small', architecture: 'amd64', slots: undefined });
  vms = new VMs(cluster);
});

afterAll(async () => {
  await cluster?.stop();
});

/** Spec of VMs that run on the ARM hosts. */
const SMALL = { image: IMAGE, architecture: 'arm64', cpu: 1, memory: '64Mi' } as const;

async function createPool(name: string, replicas: number, spec: Partial<VMPoolSpec> = {}): Promise<VMPool> {
  const template = { spec: SMALL };
  return await cluster.client().create(VM_POOLS, {
    metadata: { name, namespace },
    spec: { replicas, template, ...spec },
  });
}

async function waitForPool(name: string, what: string, test: (pool: VMPool) => boolean): Promise<VMPool> {
  return await waitFor(
    `pool ${name} to be ${what}`,
    async () => {
      const pool = await cluster.client().get(VM_POOLS, { namespace, name });
      if (!test(pool)) {
        throw new Error(JSON.stringify(pool.status));
      }
      return pool;
    },
    PATIENCE,
  );
}

async function waitUntilFull(name: string, replicas: number): Promise<VMPool> {
  return await waitForPool(name, `full with ${replicas}`, ({ metadata, status }) => {
    const ready = conditionIn(status, 'Ready');
    const isCurrent = status?.observedGeneration === metadata.generation;
    return isCurrent && ready?.status === 'True' && status?.readyReplicas === replicas;
  });
}

async function membersOf(pool: string): Promise<VM[]> {
  const { items } = await cluster.client().list(VMS, { namespace, labelSelector: `${POOL_LABEL}=${pool}` });
  return items;
}

/** Watches the VMs of a pool, as the HTTP API does. */
function watchMembers(pool: string) {
  const ended = new AbortController();
  const labelSelector = `${POOL_LABEL}=${pool}`;
  const logger = pino({ level: 'silent' });
  const informer = new Informer(cluster.client(), VMS, { logger, namespace, labelSelector });
  informer.start(ended.signal);
  return {
    synced: informer.synced,
    list: () => informer.cache.list(),
    [Symbol.dispose]: () => ended.abort(),
  };
}

/** Returns an autoscaler that wants one VM for each job in the queue, and waits for nothing. */
function autoscaler(name: string, { least, most }: typeof SCALED): object {
  const external = { metric: { name: 'queued_jobs' }, target: { type: 'AverageValue', averageValue: '1' } };
  return {
    apiVersion: 'autoscaling/v2',
    kind: 'HorizontalPodAutoscaler',
    metadata: { name, namespace },
    spec: {
      scaleTargetRef: { apiVersion: VM_POOLS.apiVersion, kind: VM_POOLS.kind, name },
      minReplicas: least,
      maxReplicas: most,
      metrics: [{ type: 'External', external }],
      behavior: { scaleDown: { stabilizationWindowSeconds: 0 } },
    },
  };
}

async function deletePool(name: string): Promise<void> {
  await cluster.client().delete(VM_POOLS, { namespace, name });
  await waitFor('the VMs of the pool to be gone', async () => (await membersOf(name)).length === 0, PATIENCE);
}

async function eventsOf(pool: string): Promise<string[]> {
  const { items } = await cluster.client().list(EVENTS, { namespace });
  return items
    .filter(({ regarding }) => regarding.kind === 'VMPool' && regarding.name === pool)
    .map(({ reason, note }) => `${reason}: ${note}`);
}

// The first VM of this world, because the operator stores times at most once a minute.
it('the operator stores how long a VM waited and ran, for the HTTP API', async () => {
  await vms.create('timed', SMALL);
  await waitFor('the VM to run', async () => (await vms.names('Running')).includes('timed'), PATIENCE);
  await vms.delete('timed');
  const entries = await waitFor(
    'the times to be stored',
    async () => {
      const data = await readData(cluster.client(), { namespace: 'berth-system', name: JOB_TIMES });
      const stored = parseJobTimes(data[namespace] ?? '')?.entries ?? [];
      return stored.some(([, , , , runs]) => runs > 0) ? stored : undefined;
    },
    { deadlineMilliseconds: 100_000 },
  );
  const sumOf = (place: 1 | 4) => entries.reduce((sum, entry) => sum + entry[place], 0);
  expect([sumOf(1), sumOf(4)]).toEqual([1, 1]);
});

describe('a VMPool', () => {
  it('keeps as many VMs as declared, scales by its subresource, and deletes them with the pool', async () => {
    await createPool('scaled', 3);
    const { status } = await waitUntilFull('scaled', 3);
    expect(status).toMatchObject({
      replicas: 3,
      staleReplicas: 0,
      claimedTotal: 0,
      selector: 'berth.dev/pool=scaled',
    });
    await cluster.kubectl(['scale', 'vmpool', 'scaled', '-n', namespace, '--replicas=5']);
    await waitUntilFull('scaled', 5);
    await cluster.kubectl(['scale', 'vmpool', 'scaled', '-n', namespace, '--replicas=1']);
    await waitUntilFull('scaled', 1);
    const { stdout } = await cluster.kubectl(['get', 'vmp', '-n', namespace]);
    expect(stdout).toMatch(
      /^NAME +WANTED +VMS +READY +STALE +CLAIMED +REASON +AGE\nscaled +1 +1 +1 +0 +0 +PoolFull/,
    );
    await deletePool('scaled');
    expect(faultsIn(operator.logFile)).toEqual([]);
  });

  it('has as many VMs as a HorizontalPodAutoscaler wants, by a metric of another program', async () => {
    await createPool('auto', 1);
    await waitUntilFull('auto', 1);
    await using metrics = await ExternalMetrics.start(cluster, 3);
    await cluster.kubectl(['apply', '-f', '-'], { input: JSON.stringify(autoscaler('auto', SCALED)) });
    await waitUntilFull('auto', 3);
    metrics.value = 100;
    const { spec } = await waitUntilFull('auto', SCALED.most);
    expect(spec.replicas).toBe(SCALED.most);
    metrics.value = 1;
    await waitUntilFull('auto', SCALED.least);
    await cluster.kubectl(['delete', 'hpa', 'auto', '-n', namespace]);
    await deletePool('auto');
  });

  it(`hands out each VM once: ${CLAIMS} claims by ${CLIENTS} clients`, async () => {
    await createPool('busy', READY);
    await waitUntilFull('busy', READY);
    const client = cluster.client();
    using watch = watchMembers('busy');
    await watch.synced;
    const own = { client, watches: client.transport };
    const list = async () => await Promise.resolve({ items: watch.list(), resourceVersion: '' });
    const members = { ...membersBy(own), list };
    // Each client is a process of its own, so they try the same VMs.
    const access = () => ({ ...own, username: USER, members, attempts: new Set<string>() });
    const claimed: Claim[] = [];
    const refusals: unknown[] = [];
    let left = CLAIMS;
    const begun = Date.now();
    await Promise.all(
      Array.from({ length: CLIENTS }, async () => {
        while (left > 0) {
          left -= 1;
          const goal = { whenEmpty: 'fail', aliveUntil: undefined, minutes: 1 } as const;
          const request = { namespace, pool: 'busy', ...goal, signal: NEVER };
          await claimVM(access(), request).then(
            (claim) => claimed.push(claim),
            (error: unknown) => refusals.push(error),
          );
        }
      }),
    );
    console.log(`${CLAIMS} claims by ${CLIENTS} clients of ${READY} VMs took ${Date.now() - begun} ms`);
    const uids = claimed.map(({ vm }) => vm.metadata.uid);
    expect([uids.length, claimed.some(({ isCold }) => isCold)]).toEqual([new Set(uids).size, false]);
    expect(uids.length).toBeGreaterThanOrEqual(READY);
    const others = refusals.map(String).filter((text) => !text.includes('No VM of pool busy is ready'));
    expect(others).toEqual([]);
    // The pool counts all claims, and makes new VMs.
    await waitForPool('busy', 'counted', ({ status }) => status?.claimedTotal === uids.length);
    const returned = (await vms.list()).filter((vm) => vm.metadata.labels?.[CLAIMED_FROM_LABEL] === 'busy');
    expect(returned.length).toBe(uids.length);
    expect(returned.filter((vm) => poolUidOf(vm) !== undefined)).toEqual([]);
    expect(returned.every(({ metadata }) => metadata.annotations?.[CLAIMED_BY_ANNOTATION] === USER)).toBe(
      true,
    );
    await deletePool('busy');
    await cluster.kubectl(['delete', 'vm', '-n', namespace, '-l', `${CLAIMED_FROM_LABEL}=busy`]);
  });

  it('replaces VMs of an earlier template one after the other, and keeps them if the first new one fails', async () => {
    await createPool('rolled', 2, { update: { type: 'Replace' } });
    const { status } = await waitUntilFull('rolled', 2);
    const change = async (spec: object) =>
      await cluster
        .client()
        .mergePatch(VM_POOLS, { namespace, name: 'rolled' }, { spec: { template: { spec } } });
    await change({ cpu: 2 });
    const done = await waitForPool('rolled', 'rolled out', (pool) => {
      const progressing = conditionIn(pool.status, 'Progressing');
      return pool.status?.revision !== status?.revision && progressing?.reason === 'PoolFull';
    });
    expect(done.status?.staleReplicas).toBe(0);
    expect((await membersOf('rolled')).map(({ spec }) => spec.cpu)).toEqual([2, 2]);
    // No host has this network, so each VM fails.
    await change({ network: { mode: 'Bridge' } });
    const stopped = await waitForPool(
      'rolled',
      'stopped',
      (pool) => conditionIn(pool.status, 'Stalled') !== undefined,
    );
    expect(conditionIn(stopped.status, 'Stalled')).toMatchObject({
      reason: 'RolloutStopped',
      message: expect.stringMatching(
        /keeps the earlier VMs\. rolled-\w{5}: Network mode Bridge is not supported/,
      ) as string,
    });
    await waitForPool('rolled', 'as before', (pool) => pool.status?.replicas === 2);
    expect((await membersOf('rolled')).map(({ spec }) => spec.network)).toEqual([undefined, undefined]);
    await waitFor('the Events', async () => {
      const reasons = (await eventsOf('rolled')).map((event) => event.split(':')[0]);
      return ['Refilled', 'RolledOut', 'RolloutStopped', 'MemberFailed'].every((word) =>
        reasons.includes(word),
      );
    });
    await deletePool('rolled');
  });

  it('makes room for a VM of another namespace that waits, and makes no VM meanwhile', async () => {
    const template = { spec: { ...SMALL, architecture: 'amd64' } } as const;
    await createPool('idle', FEW_SLOTS, { template });
    await waitUntilFull('idle', FEW_SLOTS);
    const other = new VMs(cluster, 'platform-other');
    await cluster.kubectl(['create', 'namespace', other.namespace]);
    const begun = Date.now();
    await other.create('urgent', { ...SMALL, architecture: 'amd64' });
    await other.waitForPhase('urgent', 'Running', undefined, PATIENCE);
    const took = Date.now() - begun;
    console.log(`a VM of another namespace ran ${took} ms after its creation`);
    expect(took).toBeLessThan(YIELD_MILLISECONDS);
    expect(await eventsOf('idle')).toContainEqual(
      expect.stringMatching(/^Yielded: VM idle-\w{5} was deleted/),
    );
    const { status } = await waitForPool(
      'idle',
      'smaller',
      (pool) => pool.status?.readyReplicas === FEW_SLOTS - 1,
    );
    expect(conditionIn(status, 'Ready')?.status).toBe('False');
    await other.delete('urgent');
    await waitUntilFull('idle', FEW_SLOTS);
    await cluster
      .client()
      .mergePatch(VM_POOLS, { namespace, name: 'idle' }, { spec: { yieldToWaiting: false } });
    await waitForPool(
      'idle',
      'seen',
      ({ metadata, status: seen }) => seen?.observedGeneration === metadata.generation,
    );
    await other.create('patient', { ...SMALL, architecture: 'amd64' });
    const scheduled = { status: 'False', message: 'No host is free: 1 without a free slot' } as const;
    await other.waitForCondition('patient', 'Scheduled', scheduled);
    await other.delete('patient');
    await deletePool('idle');
  });
});

describe('the example', () => {
  it('gives a VM to the command of its last lines, and to members by the HTTP API', async () => {
    await applyExample('vmpool-ci', { VMPool: { replicas: FEW_SLOTS } });
    await using berth = await BerthCommand.make(cluster.kubeconfig);
    const [wait = '', claim = ''] = (await exampleCommands('vmpool-ci')).split('\n');
    await cluster.kubectl(wait.split(' ').slice(1));
    const { code, out, err } = await berth.run(claim.split(' ').slice(1));
    expect([code, err, out]).toEqual([0, '', expect.stringMatching(/\nci-\w{5} +Running +True/)]);
    await expectHTTPClaim();
    const { out: list } = await berth.run(['pool', 'list', '--namespace', namespace]);
    expect(list).toMatch(/^NAME +WANTED +VMS +READY +STALE +CLAIMED +REASON +AGE\nci +2 /);
    expect((await berth.run(['pool', 'scale', 'ci', '0', '--namespace', namespace])).out).toBe(
      'pool ci keeps 0 VMs\n',
    );
    await waitUntilFull('ci', 0);
    await deletePool('ci');
  });
});

/** A member claims the last VM of the pool of the example. The next claim fails, and a viewer may not claim. */
async function expectHTTPClaim(): Promise<void> {
  const path = `/api/v1/namespaces/${namespace}/vmpools/ci/claim?whenEmpty=fail`;
  const server = await cluster.startServer();
  const api = new HTTPClient(server);
  try {
    const dev = await accountToken(cluster, { namespace, name: 'dev' }, { role: 'berth-role-dev' });
    const viewer = await accountToken(
      cluster,
      { namespace, name: 'eye' },
      { role: 'berth-role-viewer', in: 'cluster' },
    );
    const call = async (token: string) =>
      await api.call(path, { method: 'POST', token, body: { timeout: 1 } });
    const claimed = await waitFor('the rights', async () => {
      const answer = await call(dev);
      return answer.status !== 403 && answer;
    });
    expect([claimed.status, claimed.body]).toEqual([
      200,
      expect.objectContaining({ name: expect.stringMatching(/^ci-\w{5}$/), status: 'Running', cold: false }),
    ]);
    const vm = await vms.get(claimed.body.name as string);
    const user = `system:serviceaccount:${namespace}:dev`;
    expect(vm.metadata.annotations?.[CLAIMED_BY_ANNOTATION]).toBe(user);
    const empty = await call(dev);
    expect([empty.status, empty.body.message]).toEqual([
      503,
      expect.stringMatching(/^No VM of pool ci is ready/),
    ]);
    expect((await call(viewer)).status).toBe(403);
  } finally {
    await api.close();
    await server.process.stop();
  }
}

async function applyExample(name: string, replaced: Replaced): Promise<void> {
  await cluster.kubectl(['apply', '-f', '-'], { input: await exampleObjects(name, replaced) });
}
