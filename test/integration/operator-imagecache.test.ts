import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { NAT_READY_CONDITION, NAT_TAINT } from '../../api/v1alpha1/names.ts';
import { NODES } from '../../kube/core.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { contentName } from '../../api/v1alpha1/cachetargets.ts';
import { IMAGE_CACHE_ENTRIES } from '../../api/v1alpha1/resources.ts';
import { setNodeCondition } from '../worlds/actinghost.ts';
import { CacheEntries, readyOf, rowOf } from '../fixtures/cacheentries.ts';
import { CacheSimulator } from '../worlds/cachesimulator.ts';
import { JobHistory } from '../support/jobhistory.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { numbered, VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

const HOSTS = 12;
const LIMIT = 5;
const CONFIG = {
  osx_node_platform_quota_pod: 1,
  // A busy cluster must schedule each Job within this time. Otherwise the operator would replace the Job, and tests count Jobs.
  cacheSlotWaitSeconds: 30,
  cacheRetrySeconds: 2,
};
/** Deadline of Jobs, in seconds. A test waits for it. */
const SHORT_DEADLINE_SECONDS = 10;
/**
 * Time limit. On a busy machine, the other hosts miss the deadline too. They need further attempts, and the waits between attempts grow.
 */
const ATTEMPTS = { deadlineMilliseconds: 120_000 };

let cluster: Cluster;
let operator: OperatorProcess;
let simulator: CacheSimulator;
let history: JobHistory;
let entries: CacheEntries;
const hosts = numbered('host', HOSTS);
const logs: string[] = [];

async function startOperator(more: object = {}): Promise<void> {
  operator = await cluster.startOperator({
    config: { ...CONFIG, ...more },
    name: `operator-${logs.length}`,
  });
  logs.push(operator.logFile);
}

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-imagecache-${process.pid}`, hosts: HOSTS });
  simulator = await CacheSimulator.start(cluster.client());
  history = await JobHistory.start(cluster.client());
  entries = new CacheEntries(cluster);
  await startOperator();
});

afterAll(async () => {
  history?.stop();
  simulator?.stop();
  await cluster?.stop();
});

afterEach(async () => {
  for (const host of hosts) {
    simulator.conduct(host, {});
  }
  await deleteAll();
  await waitFor('every Job to be gone', () => history.present === 0);
});

/** no-orphan: after each test, no object keeps anything for an entry. */
async function deleteAll(): Promise<void> {
  const names = (await entries.list()).map(({ metadata }) => metadata.name);
  await Promise.all(names.map((name) => entries.delete(name)));
  for (const name of names) {
    await entries.waitUntilGone(name);
  }
  expect(hosts.filter((host) => simulator.holds(host).length > 0)).toEqual([]);
}

/** Waits for an Event in the output of kubectl describe, because Events are written a little later. */
async function untilReported(name: string, event: RegExp): Promise<void> {
  await waitFor(`${String(event)} in kubectl describe`, async () =>
    event.test((await cluster.kubectl(['describe', 'ice', name, '-n', 'platform-default'])).stdout),
  );
}

async function kubectlGet(...more: string[]): Promise<string[][]> {
  const { stdout } = await cluster.kubectl(['get', 'ice', '-n', 'platform-default', ...more]);
  return stdout
    .trim()
    .split('\n')
    .map((row) => row.split(/\s{2,}/));
}

/** Waits until `kubectl get` names the host that fails. The host does not fail while it is tried again. */
async function untilShownFailing(host: string): Promise<void> {
  await waitFor('kubectl get to name the host that fails', async () => {
    const [head, row] = await kubectlGet('-o', 'wide');
    return row?.[head?.indexOf('FAILING') ?? 0] === host;
  });
}

describe('an ImageCacheEntry for all hosts', () => {
  const reference = 'registry.example/all:1';

  it('is cached on each of them, by at most five Jobs at once, and on a host that joins later', async () => {
    for (const host of hosts) {
      simulator.conduct(host, { delayMilliseconds: 300 });
    }
    await entries.create('all', { reference, targets: { all: true } });
    await entries.waitUntilCached('all', HOSTS);
    await waitFor('the history of Jobs to tell of as many', () => history.mostOf('all') >= LIMIT);
    for (const { status } of (await cluster.client().list(NODES)).items) {
      expect(status?.images?.flatMap(({ names }) => names)).toContain(
        contentName(simulator.digest(reference)),
      );
    }
    const [joined = ''] = await cluster.addHosts(1);
    hosts.push(joined);
    const entry = await entries.waitUntilCached('all', HOSTS + 1);
    expect(entry.status).toMatchObject({ desired: HOSTS + 1, digest: simulator.digest(reference) });
    expect(entry.status?.nodes).toBeUndefined();
    expect(history.mostOf('all')).toBe(LIMIT);

    const [head, row] = await kubectlGet();
    expect(head).toEqual(['NAME', 'IMAGE', 'DIGEST', 'CACHED', 'WANTED', 'AGE']);
    expect(row?.slice(0, 5)).toEqual(['all', reference, simulator.digest(reference), '13', '13']);
    await untilReported('all', /Normal\s+Cached\s.*12 of 12 hosts have the image/);
  });

  it('asks each host once, also one that has the image already, because the host keeps it from then on', async () => {
    const [first = ''] = hosts;
    await simulator.pull(first, reference);
    const before = simulator.done.length;
    await entries.create('present', { reference, targets: { nodes: hosts.slice(0, 3) } });
    await entries.waitUntilCached('present', 3);
    await waitFor('the Jobs to be gone', () => history.madeFor('present') >= 3 && history.present === 0);
    expect(history.madeFor('present')).toBe(3);
    expect(simulator.done.slice(before).toSorted()).toEqual(
      hosts.slice(0, 3).map((host) => `cache ${host} ${reference}`),
    );
    expect(simulator.holds(first)).toHaveLength(1);
  });

  it('is cached on a host with broken NAT too, and removed from it', async () => {
    const [name = ''] = hosts;
    const client = cluster.client();
    const natReady = { type: NAT_READY_CONDITION, reason: 'Tested', message: '' };
    const isTainted = async () => {
      const { spec } = await client.get(NODES, { name });
      return spec?.taints?.some(({ key }) => key === NAT_TAINT) === true;
    };
    await setNodeCondition(client, name, { ...natReady, status: 'False' });
    await waitFor('the taint', isTainted);
    const reference = 'registry.example/without-nat:1';
    await entries.create('without-nat', { reference, targets: { nodes: [name] } });
    await entries.waitUntilCached('without-nat', 1);
    await entries.delete('without-nat');
    await entries.waitUntilGone('without-nat');
    expect(simulator.holds(name)).toEqual([]);
    expect(await isTainted()).toBe(true);
    await setNodeCondition(client, name, { ...natReady, status: 'True' });
    await waitFor('no taint', async () => !(await isTainted()));
  });

  it('continues when the operator is killed in the middle, and fetches nothing twice', async () => {
    for (const host of hosts) {
      simulator.conduct(host, { delayMilliseconds: 500 });
    }
    const before = simulator.done.length;
    await entries.create('killed', { reference: 'registry.example/killed:1', targets: { all: true } });
    await entries.waitFor('killed', 'some hosts to have it', ({ status }) => (status?.cached ?? 0) >= 3);
    await operator.kill('SIGKILL');
    await operator.stopped;
    await startOperator();
    await entries.waitUntilCached('killed', hosts.length);
    expect(simulator.done.slice(before).toSorted()).toEqual(
      hosts.map((host) => `cache ${host} registry.example/killed:1`).toSorted(),
    );
    expect(history.mostOf('killed')).toBeLessThanOrEqual(LIMIT);
  });
});

describe('an entry from which an uninstallation removed the finalizer', () => {
  it('is kept by a later operator, which asks its hosts for nothing, and removes it from them', async () => {
    const names = ['kept', 'kept-twice'];
    for (const name of names) {
      await entries.create(name, {
        reference: 'registry.example/kept:1',
        targets: { nodes: hosts.slice(0, 3) },
      });
    }
    await entries.waitUntilCached('kept', 3);
    const holder = (await entries.get('kept')).metadata.uid;
    const done = simulator.done.length;
    await operator.stop();
    for (const name of names) {
      await cluster
        .client()
        .mergePatch(
          IMAGE_CACHE_ENTRIES,
          { namespace: 'platform-default', name },
          { metadata: { finalizers: [] } },
        );
    }
    await startOperator();
    await entries.waitFor('kept', 'to be held', ({ metadata }) => metadata.finalizers !== undefined);
    await entries.waitUntilCached('kept', 3);
    await entries.waitFor(
      'kept-twice',
      'to be a duplicate',
      (entry) => readyOf(entry)?.reason === 'DuplicateOf',
    );
    expect(simulator.done).toHaveLength(done);
    for (const host of hosts.slice(0, 3)) {
      expect(simulator.holds(host)).toEqual([holder]);
    }
  });
});

describe('hosts that do not finish', () => {
  it('full: wait without a Job until they have a slot, and delay no other host', async () => {
    const full = hosts.slice(0, 6);
    const vms = new VMs(cluster);
    await Promise.all(full.map((node) => vms.create(`on-${node}`, { placement: { node } })));
    for (const node of full) {
      await vms.waitForPhase(`on-${node}`, 'Running');
    }
    await entries.create('busy', { reference: 'registry.example/busy:1', targets: { all: true } });
    const free = hosts.length - full.length;
    await entries.waitFor('busy', 'all free hosts to have it', ({ status }) => status?.cached === free);
    const entry = await entries.waitFor('busy', 'each full host to be known as full', (candidate) =>
      full.every((host) => rowOf(candidate, host)?.message === 'HostFull: the host has no free slot'),
    );
    expect(new Set(full.map((host) => rowOf(entry, host)?.state))).toEqual(new Set(['Queued']));
    expect(readyOf(entry)).toMatchObject({ status: 'False', reason: 'Caching' });
    expect(history.madeFor('busy')).toBe(free);
    await Promise.all(full.map((node) => vms.delete(`on-${node}`)));
    await entries.waitUntilCached('busy', hosts.length);
    expect(history.mostOf('busy')).toBeLessThanOrEqual(LIMIT);
  });

  it('failing: are named in kubectl get and in an Event, are tried again later, and delay no other host', async () => {
    const fails = { reason: 'ImageAccessDenied', message: 'the registry wants a password' };
    simulator.conduct('host-2', { fails });
    await entries.create('denied', { reference: 'registry.example/denied:1', targets: { all: true } });
    const failed = await entries.waitFor(
      'denied',
      'one host to have failed twice and to wait, all others to have it',
      (entry) => {
        const { state, failures = 0 } = rowOf(entry, 'host-2') ?? {};
        return entry.status?.cached === hosts.length - 1 && state === 'Failed' && failures >= 2;
      },
    );
    expect(rowOf(failed, 'host-2')?.message).toBe('ImageAccessDenied: the registry wants a password');
    expect(readyOf(failed)?.message).toContain('host-2');
    await untilReported(
      'denied',
      /Warning\s+CachingFailed\s.*Host host-2: ImageAccessDenied: the registry wants/,
    );
    await untilShownFailing('host-2');
    simulator.conduct('host-2', {});
    await entries.waitUntilCached('denied', hosts.length);
  });

  it('stuck: are Failed at the deadline, with their slot free again, and are tried again', {
    timeout: 300_000,
  }, async () => {
    await operator.stop();
    await startOperator({ cache_job_active_deadline_seconds: SHORT_DEADLINE_SECONDS });
    simulator.conduct('host-3', { hangs: true });
    await entries.create('stuck', { reference: 'registry.example/stuck:1', targets: { all: true } });
    const failed = await entries.waitFor(
      'stuck',
      'one host to fail, all others to have it',
      ({ status }) => status?.failed === 1 && status.cached === hosts.length - 1,
      ATTEMPTS,
    );
    expect(rowOf(failed, 'host-3')?.message).toMatch(/^DeadlineExceeded: image not fetched within 10 s/);
    // The operator tries again soon, and the host fails again.
    await untilShownFailing('host-3');
    const vms = new VMs(cluster);
    await vms.create('instead', { placement: { node: 'host-3' } });
    await vms.waitForPhase('instead', 'Running');
    // As long as the VM has the slot, no task can begin and hang again.
    simulator.conduct('host-3', {});
    await vms.delete('instead');
    await vms.waitUntilGone('instead');
    await entries.waitUntilCached('stuck', hosts.length, ATTEMPTS);
    await operator.stop();
    await startOperator();
  });

  it('tainted by an admin: wait with the taint in their message, until it is removed', async () => {
    await operator.stop();
    await startOperator({ cacheSlotWaitSeconds: 3 });
    await cluster.kubectl(['taint', 'node', 'host-4', 'example.com/broken=:NoSchedule']);
    const created = { reference: 'registry.example/tainted:1', targets: { nodes: ['host-4'] } };
    await entries.create('tainted', created);
    const message =
      'NotScheduled: the Job was not scheduled within 3 s: No host is free: 1 with the taint example.com/broken';
    const waiting = await entries.waitFor(
      'tainted',
      'the message to name the taint',
      (entry) => rowOf(entry, 'host-4')?.message === message,
    );
    expect(rowOf(waiting, 'host-4')?.state).toBe('Queued');
    await cluster.kubectl(['taint', 'node', 'host-4', 'example.com/broken-']);
    await entries.waitUntilCached('tainted', 1);
    await operator.stop();
    await startOperator();
  });
});

describe('removal', () => {
  it('cleans a cordoned host too, although it gets no other work', async () => {
    const reference = 'registry.example/cordoned:1';
    await entries.create('cordoned', { reference, targets: { nodes: ['host-0', 'host-1'] } });
    await entries.waitUntilCached('cordoned', 2);
    await cluster.kubectl(['cordon', 'host-1']);
    await deleteAll();
    await entries.create('uncached', { reference, targets: { nodes: ['host-0', 'host-1'] } });
    await entries.waitFor(
      'uncached',
      'the other host alone to have the image',
      (entry) => entry.status?.cached === 1 && rowOf(entry, 'host-1')?.message === 'The host is cordoned',
    );
    expect(simulator.holds('host-1')).toEqual([]);
    await cluster.kubectl(['uncordon', 'host-1']);
    await entries.waitUntilCached('uncached', 2);
  });

  it('cleans hosts that leave the targets, and all hosts when the entry is deleted', async () => {
    await cluster.kubectl(['label', 'node', ...hosts.slice(0, 6), 'tag.berth.dev/ci=']);
    await cluster.kubectl(['label', 'node', hosts[4] ?? '', 'tag.berth.dev/old=']);
    const created = await entries.create('tagged', {
      reference: 'registry.example/tagged:1',
      targets: { tags: ['ci'], excludeTags: ['old'], excludeNodes: [hosts[5] ?? ''] },
    });
    await entries.waitUntilCached('tagged', 4);
    expect(simulator.holds(hosts[4] ?? '')).toEqual([]);
    expect(simulator.holds(hosts[5] ?? '')).toEqual([]);
    simulator.conduct('host-0', { hangs: true });
    await cluster.kubectl(['label', 'node', 'host-0', 'host-1', 'tag.berth.dev/ci-']);
    await waitFor('host-1 to be clean', () => simulator.holds('host-1').length === 0);
    const leaving = await entries.waitFor('tagged', 'only host-0 to be left', ({ status }) => {
      return status?.nodes?.length === 1 && status.desired === 2;
    });
    expect(rowOf(leaving, 'host-0')).toMatchObject({ state: 'Removing' });
    expect(leaving.status).toMatchObject({ cached: 2, failed: 0 });

    await entries.delete('tagged');
    await waitFor('host-2 and host-3 to be clean', () =>
      ['host-2', 'host-3'].every((host) => simulator.holds(host).length === 0),
    );
    expect(simulator.holds('host-0')).toEqual([created.metadata.uid]);
    expect(readyOf(await entries.get('tagged'))).toMatchObject({ status: 'False', reason: 'Removing' });
    // Somebody deletes a hanging Pod. The operator then tries again.
    simulator.conduct('host-0', {});
    await cluster.kubectl([
      'delete',
      'pods',
      '-n',
      'platform-default',
      '-l',
      'berth.dev/workload=cache',
      '--wait=false',
    ]);
    await entries.waitUntilGone('tagged');
    expect(simulator.holds('host-0')).toEqual([]);
    await cluster.kubectl(['label', 'nodes', '--all', 'tag.berth.dev/ci-', 'tag.berth.dev/old-']);
  });
});

describe('two namespaces with entries for one image', () => {
  const reference = 'registry.example/both:1';
  const [host = ''] = hosts;
  const other = 'platform-other';

  /** Returns all that users of the namespace read of the cache there. */
  async function readableIn(namespace: string): Promise<string> {
    const { stdout } = await cluster.kubectl(['get', 'ice,events,jobs,pods', '-n', namespace, '-o', 'yaml']);
    return stdout;
  }

  it('keep it while either wants it, and neither is told of the other, nor is left over with its namespace', async () => {
    await cluster.createNamespace(other);
    const theirs = new CacheEntries(cluster, other);
    const spec = { reference, targets: { nodes: [host] } };
    const [own, foreign] = [await entries.create('own', spec), await theirs.create('foreign', spec)];
    const [first] = await Promise.all([
      entries.waitUntilCached('own', 1),
      theirs.waitUntilCached('foreign', 1),
    ]);
    expect(readyOf(first)).toMatchObject({ status: 'True', reason: 'Cached' });
    const uids = new Set([own, foreign].map(({ metadata }) => metadata.uid));
    expect(new Set(simulator.holds(host))).toEqual(uids);
    const names = (await cluster.client().get(NODES, { name: host })).status?.images?.flatMap(
      (one) => one.names,
    );
    expect(names).toEqual([contentName(simulator.digest(reference))]);

    expect(await readableIn(other)).not.toMatch(/platform-default|name: own/);
    expect(await readableIn('platform-default')).not.toMatch(/platform-other|foreign/);
    await entries.delete('own');
    await entries.waitUntilGone('own');
    expect(simulator.holds(host)).toEqual([foreign.metadata.uid]);
    expect((await theirs.get('foreign')).status).toMatchObject({ cached: 1, desired: 1 });

    // A namespace that is being deleted gets no Jobs, but its hosts must be told.
    await cluster.kubectl(['delete', 'namespace', other, '--wait=false']);
    await theirs.waitUntilGone('foreign');
    expect(simulator.holds(host)).toEqual([]);
    await waitFor('the Job to be gone', () => history.present === 0);
  });
});

describe('names', () => {
  it('all spellings are one image: the oldest entry has it, and the next takes over when that entry is deleted', async () => {
    const spellings = [' debian', 'docker.io/library/debian:latest', 'INDEX.docker.io/library/debian'];
    const targets = { nodes: ['host-0'] };
    for (const [index, reference] of spellings.entries()) {
      await entries.create(`spelling-${index}`, { reference: reference.trimStart(), targets });
    }
    const first = await entries.waitUntilCached('spelling-0', 1);
    expect(first.status?.normalizedReference).toBe('docker.io/library/debian:latest');
    for (const name of ['spelling-1', 'spelling-2']) {
      const duplicate = await entries.waitFor(
        name,
        'to be a duplicate',
        (entry) =>
          entry.status?.conditions?.some(({ type, status }) => type === 'Accepted' && status === 'False') ===
          true,
      );
      expect(readyOf(duplicate)).toMatchObject({ status: 'False', reason: 'DuplicateOf' });
      expect(readyOf(duplicate)?.message).toContain('spelling-0');
      expect(duplicate.status).toMatchObject({ desired: 0, cached: 0 });
    }
    await entries.delete('spelling-0');
    await entries.waitUntilGone('spelling-0');
    await entries.waitUntilCached('spelling-1', 1);
    expect(simulator.holds('host-0')).toEqual([(await entries.get('spelling-1')).metadata.uid]);
    await entries.waitFor('spelling-2', 'to be a duplicate of the next', (entry) =>
      Boolean(readyOf(entry)?.message?.includes('spelling-1')),
    );
  });

  it('a tag that moved: hosts with the older image are Outdated until a newer one is requested', async () => {
    const reference = 'registry.example/moving:latest';
    const older = simulator.digest(reference);
    await entries.create('moving', { reference, targets: { nodes: hosts.slice(0, 4) } });
    await entries.waitUntilCached('moving', 4);
    simulator.moveTag(reference, 'second');
    // The host lost the image and fetches it again. Only a fetch shows that the tag has moved.
    await simulator.lose('host-0', reference);
    const entry = await entries.waitFor('moving', 'three hosts to be outdated', ({ status }) => {
      return status?.outdated === 3 && status.cached === 1;
    });
    expect(entry.status?.digest).toBe(simulator.digest(reference));
    expect(rowOf(entry, 'host-1')).toEqual({
      node: 'host-1',
      state: 'Outdated',
      message: `The host has the outdated image ${older}`,
    });
    expect(readyOf(entry)).toMatchObject({ status: 'False', reason: 'Outdated' });
    const before = simulator.done.length;
    const refreshRequestedAt = new Date().toISOString();
    await entries.patch('moving', { refreshRequestedAt });
    const refreshed = await entries.waitUntilCached('moving', 4);
    expect(refreshed.status).toMatchObject({ outdated: 0, lastRefresh: refreshRequestedAt });
    expect(simulator.done.slice(before)).toHaveLength(4);
  });

  it('an Image that does not exist: the entry waits and says so', async () => {
    const imageRef = { namespace: 'platform-default', name: 'nowhere' };
    await entries.create('waiting', { imageRef, targets: { all: true } });
    const entry = await entries.waitFor('waiting', 'a reason', (one) => readyOf(one) !== undefined);
    expect(readyOf(entry)).toMatchObject({ status: 'False', reason: 'ImageNotFound' });
    expect(entry.status?.normalizedReference).toBe('berth.dev/platform-default/nowhere');
  });
});

describe('the operator', () => {
  it('has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(logs.flatMap(faultsIn)).toEqual([]);
  });
});
