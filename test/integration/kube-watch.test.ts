import { randomBytes } from 'node:crypto';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { ObjectChange } from '../../kube/cache.ts';
import { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import { CONFIG_MAPS, type ConfigMap, SECRETS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { isConflict, isInvalid, isNotFound } from '../../kube/errors.ts';
import { Informer, type InformerOptions } from '../../kube/informer.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { numbered } from '../fixtures/vms.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';
import { type FaultProxy, startFaultProxy } from '../wires/kubeproxy.ts';

const namespace = `kube-watch-${randomBytes(4).toString('hex')}`;
const logger = pino({ level: 'silent' });
/** Time limit for a new watch. The first wait of a watch is 0.8 to 1.6 s, and the machine may be busy. */
const RECOVERY = { deadlineMilliseconds: 60_000 };
const GONE = { kind: 'Status', apiVersion: 'v1', code: 410, reason: 'Expired', message: 'too old' };

let cluster: Cluster;
let admin: KubeClient;
let proxy: FaultProxy;
let client: KubeClient;
let end: AbortController;
let informer: Informer<ConfigMap>;
let seen: string[];

function tell({ type, object }: ObjectChange<ConfigMap>): string {
  return `${type} ${object.metadata.name} ${object.data?.value ?? ''}`;
}

async function follow(options: InformerOptions<ConfigMap> = {}): Promise<void> {
  informer = new Informer(client, CONFIG_MAPS, {
    namespace,
    labelSelector: `test=${label}`,
    logger,
    ...options,
  });
  informer.cache.onChange((change) => seen.push(tell(change)));
  informer.start(end.signal);
  await informer.synced;
}

let label: string;

async function create(name: string, value: string): Promise<ConfigMap> {
  const metadata = { name: `${name}-${label}`, namespace, labels: { test: label } };
  return await admin.create(CONFIG_MAPS, { metadata, data: { value } });
}

async function change(name: string, value: string): Promise<ConfigMap> {
  return await admin.mergePatch(CONFIG_MAPS, { namespace, name: `${name}-${label}` }, { data: { value } });
}

async function remove(name: string): Promise<void> {
  await admin.delete(CONFIG_MAPS, { namespace, name: `${name}-${label}` });
}

async function relists(): Promise<Record<string, number>> {
  const { values } = await client.transport.metrics.relists.get();
  return Object.fromEntries(values.map(({ labels, value }) => [String(labels.reason), value]));
}

/** Returns the changes with names without the test's own prefix. */
function reported(): string[] {
  return seen.map((one) => one.replace(`-${label}`, ''));
}

async function waitToSee(what: string): Promise<void> {
  await waitFor(
    `the change "${what}"; seen: ${reported().join(', ')}`,
    () => reported().includes(what),
    RECOVERY,
  );
}

beforeAll(async () => {
  cluster = await sharedCluster();
  admin = cluster.client();
  await cluster.createNamespace(namespace);
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

beforeEach(async () => {
  label = randomBytes(4).toString('hex');
  seen = [];
  end = new AbortController();
  proxy = await startFaultProxy(await loadConnection({ kubeconfigPath: cluster.kubeconfig }));
  client = new KubeClient(new Transport(proxy.connection, { metrics: createMetrics() }));
});

afterEach(async () => {
  end.abort();
  await client.transport.close();
  await proxy.close();
});

describe('informer', () => {
  it('has all objects after its first read, by one WatchList, and then follows', async () => {
    await create('a', '1');
    await create('b', '1');
    await follow();
    expect(reported().toSorted()).toEqual(['added a 1', 'added b 1']);
    await change('a', '2');
    await remove('a');
    await waitToSee('deleted a 2');
    expect(reported().slice(2)).toEqual(['updated a 2', 'deleted a 2']);
    expect(proxy.requests).toEqual([expect.stringContaining('sendInitialEvents=true')]);
    expect(informer.cache.list().map(({ metadata }) => metadata.name)).toEqual([`b-${label}`]);
  });

  it('lists in pages if the server has no WatchList', async () => {
    proxy.refuse = (path) =>
      path.includes('sendInitialEvents')
        ? { status: 422, body: { kind: 'Status', code: 422, reason: 'Invalid' } }
        : undefined;
    // More objects than one page has, in the order of their names.
    await create('a', '1');
    await Promise.all(numbered('b', 500).map((name) => create(name, '1')));
    await follow();
    expect(new Set(reported())).toEqual(
      new Set(['a', ...numbered('b', 500)].map((name) => `added ${name} 1`)),
    );
    await change('b-499', '2');
    await waitToSee('updated b-499 2');
    expect(reported().at(-1)).toBe('updated b-499 2');
    expect(proxy.requests.slice(1, 3)).toEqual([
      expect.stringContaining('limit=500'),
      expect.stringContaining('continue='),
    ]);
    expect(informer.cache.get(`${namespace}/a-${label}`)).toMatchObject({
      kind: 'ConfigMap',
      apiVersion: 'v1',
    });
  });

  it.each([
    ['ends within a line', () => proxy.cut('{"type":"ADDED","object":{"kind":"Conf')],
    ['breaks', () => proxy.reset()],
  ])('resumes where it was when the connection %s', async (_, lose) => {
    await create('a', '1');
    await follow();
    lose();
    await change('a', '2');
    await waitToSee('updated a 2');
    expect(reported()).toEqual(['added a 1', 'updated a 2']);
    expect(await relists()).toEqual({ start: 1 });
  });

  it('reads everything again when its place in history is gone, and finds objects that were created again under their names', async () => {
    const first = await create('a', '1');
    await create('b', '1');
    await follow();
    proxy.silence();
    await remove('a');
    const second = await create('a', '1');
    await remove('b');
    proxy.inject(JSON.stringify({ type: 'ERROR', object: GONE }));
    await waitToSee('deleted b 1');
    expect(reported().slice(2)).toEqual(['deleted a 1', 'added a 1', 'deleted b 1']);
    expect(informer.cache.get(`${namespace}/a-${label}`)?.metadata.uid).toBe(second.metadata.uid);
    expect(second.metadata.uid).not.toBe(first.metadata.uid);
    expect(await relists()).toEqual({ start: 1, '410': 1 });
  });

  it('reads everything again after a line that is no JSON', async () => {
    await follow();
    proxy.inject('{"type":');
    await create('a', '1');
    await waitToSee('added a 1');
    expect(await relists()).toMatchObject({ malformed: 1 });
  });

  it('goes on after the server has refused for some time', async () => {
    await follow();
    let refused = 0;
    proxy.refuse = () => {
      refused += 1;
      return refused > 2 ? undefined : { status: 500, body: { kind: 'Status', code: 500 } };
    };
    proxy.cut();
    await create('a', '1');
    await waitToSee('added a 1');
    expect(refused).toBeGreaterThan(2);
  });

  it('cuts a silently dead watch when an own write does not return, and is then consistent', async () => {
    await create('a', '1');
    await follow();
    const consistency = new Consistency();
    proxy.silence();
    const written = await change('a', '2');
    consistency.wrote('key', informer, written.metadata.resourceVersion ?? '');
    expect(consistency.ready('key')).toBe(false);
    await waitFor('the own write', () => consistency.ready('key'), RECOVERY);
    expect(reported()).toEqual(['added a 1', 'updated a 2']);
    expect(await relists()).toEqual({ start: 1 });
    const cuts = await client.transport.metrics.cuts.get();
    expect(cuts.values[0]).toMatchObject({ labels: { reason: 'behind' }, value: 1 });
  });

  it('keeps an object that its transform cannot read as it is, and goes on', async () => {
    await create('a', 'strange');
    const transform = (object: ConfigMap) => {
      if (object.data?.value === 'strange') {
        throw new TypeError('no such field');
      }
      return { ...object, data: { value: 'trimmed' } };
    };
    await follow({ transform });
    await create('b', 'usual');
    await waitToSee('added b trimmed');
    await change('b', 'strange');
    await waitToSee('updated b strange');
    expect(reported()).toEqual(['added a strange', 'added b trimmed', 'updated b strange']);
    expect(proxy.requests).toHaveLength(1);
  });

  it('keeps no managedFields, and no fields that its transform removes', async () => {
    await create('a', '1');
    await follow({
      transform: (object) => {
        delete object.data;
        return object;
      },
    });
    const object = informer.cache.get(`${namespace}/a-${label}`);
    expect(object).toBeDefined();
    expect(object).not.toHaveProperty('data');
    expect(object?.metadata).not.toHaveProperty('managedFields');
  });
});

describe('requests', () => {
  it('wait as long as the server asks, and are then repeated', async () => {
    let busy = true;
    proxy.refuse = () => {
      if (!busy) {
        return undefined;
      }
      busy = false;
      return { status: 429, body: { kind: 'Status', code: 429 }, headers: { 'retry-after': '1' } };
    };
    const began = performance.now();
    await client.create(CONFIG_MAPS, { metadata: { name: `busy-${label}`, namespace } });
    expect(performance.now() - began).toBeGreaterThan(990);
    expect(proxy.requests).toHaveLength(2);
  });

  it('give up at their deadline', async () => {
    proxy.refuse = () => ({ status: 503, body: { kind: 'Status', code: 503 } });
    const call = client.get(CONFIG_MAPS, { namespace, name: 'a' }, { deadlineMilliseconds: 700 });
    await expect(call).rejects.toThrow(/GET .*: no answer in time/);
  });

  it('are held back by a guard if they write, but not if they read', async () => {
    client.guard = () => false;
    const write = client.create(CONFIG_MAPS, { metadata: { name: `guarded-${label}`, namespace } });
    await expect(write).rejects.toThrow('was not sent');
    await expect(client.list(CONFIG_MAPS, { namespace })).resolves.toBeDefined();
    expect(proxy.requests.filter((path) => !path.includes('limit='))).toEqual([]);
  });

  it('read only the metadata of a list, without the content', async () => {
    const labels = { metadata: label };
    await client.create(SECRETS, {
      metadata: { name: `content-${label}`, namespace, labels },
      stringData: { password: 'secret' },
    });
    const options = { namespace, labelSelector: `metadata=${label}`, metadataOnly: true };
    const { items } = await client.list(SECRETS, options);
    expect(items).toMatchObject([{ kind: 'Secret', metadata: { name: `content-${label}`, labels } }]);
    expect(Object.keys(items[0] ?? {}).toSorted()).toEqual(['apiVersion', 'kind', 'metadata']);
  });

  it('distinguish a conflict from an invalid object, and take a missing object as deleted', async () => {
    const made = await create('a', '1');
    await change('a', '2');
    await expect(client.update(CONFIG_MAPS, made)).rejects.toSatisfy(isConflict);
    await expect(
      client.create(CONFIG_MAPS, { metadata: { name: 'Not A Name', namespace } }),
    ).rejects.toSatisfy(isInvalid);
    const ref = { namespace, name: `a-${label}` };
    await expect(client.delete(CONFIG_MAPS, ref, { uid: 'another' })).rejects.toSatisfy(isConflict);
    await client.delete(CONFIG_MAPS, ref, { uid: made.metadata.uid });
    await client.delete(CONFIG_MAPS, ref);
  });

  it('create an object by apply, but not an object with a uid that is gone', async () => {
    const metadata = { name: `applied-${label}`, namespace };
    const made = await client.apply<ConfigMap>(
      CONFIG_MAPS,
      { metadata, data: { value: '1' } },
      { fieldManager: 'kube-test', force: true },
    );
    expect(made.data).toEqual({ value: '1' });
    await client.delete(CONFIG_MAPS, metadata);
    const late = { metadata: { ...metadata, uid: made.metadata.uid }, data: {} };
    const apply = client.apply(CONFIG_MAPS, late, { fieldManager: 'kube-test', force: true });
    await expect(apply).rejects.toSatisfy(isConflict);
    await expect(client.get(CONFIG_MAPS, metadata)).rejects.toSatisfy(isNotFound);
  });
});
