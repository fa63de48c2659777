import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { pino } from 'pino';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS, type ConfigMap, type Event, EVENTS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { EventRecorder, type EventText } from '../../kube/events.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';

/** Without a limit, the end would wait much longer for a server that does not answer. */
const END_MILLISECONDS = 5_000;
const namespace = `kube-events-${randomBytes(4).toString('hex')}`;

let cluster: Cluster;
let client: KubeClient;
let object: ConfigMap;
let now: number;
let recorder: EventRecorder<string>;

function text(message: string): EventText<string> {
  return { type: 'Warning', reason: 'Tried', action: 'Try', message };
}

async function events(): Promise<Event[]> {
  const { items } = await client.list(EVENTS, { namespace });
  return items.filter((event) => event.regarding.uid === object.metadata.uid);
}

async function counted(result: string): Promise<number> {
  const { values } = await client.transport.metrics.eventsSent.get();
  return values.find(({ labels }) => labels.result === result)?.value ?? 0;
}

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
});

afterAll(async () => {
  await client.transport.close();
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

beforeEach(async () => {
  const connection = await loadConnection({ kubeconfigPath: cluster.kubeconfig });
  client = new KubeClient(new Transport(connection, { metrics: createMetrics() }));
  const metadata = { name: `object-${randomBytes(4).toString('hex')}`, namespace };
  object = await client.create(CONFIG_MAPS, { metadata });
  now = Date.now();
  recorder = new EventRecorder<string>(client, {
    reportingController: 'berth.dev/test',
    reportingInstance: `test-${'x'.repeat(200)}`,
    logger: pino({ level: 'silent' }),
    clock: () => now,
  });
});

describe('events', () => {
  it('that repeat are counted in one Event', async () => {
    for (let count = 0; count < 5; count += 1) {
      recorder.event(object, text('no luck'));
    }
    const [event] = await waitFor('the count', async () => {
      const found = await events();
      return found[0]?.series?.count === 5 && found;
    });
    expect(await events()).toHaveLength(1);
    expect(event).toMatchObject({ note: 'no luck', type: 'Warning', reason: 'Tried', action: 'Try' });
    expect(event?.reportingInstance).toHaveLength(128);
  });

  it('are limited to 25 at once for an object, and then to one in five minutes', async () => {
    for (let count = 0; count < 40; count += 1) {
      recorder.event(object, text(`number ${count}`));
    }
    await waitFor('25 Events', async () => (await counted('created')) === 25);
    expect(await counted('limited')).toBe(15);
    now += 300_000;
    recorder.event(object, text('later'));
    recorder.event(object, text('too soon'));
    await waitFor('one more', async () => (await counted('created')) === 26);
    expect(await counted('limited')).toBe(16);
    expect(await events()).toHaveLength(26);
  });

  it('that are too long are cut to the limit of the server, between two characters', async () => {
    recorder.event(object, text('€'.repeat(2_000)));
    const [event] = await waitFor('the Event', async () => {
      const found = await events();
      return found.length > 0 && found;
    });
    // The limit is 1024 bytes, and each of these characters has three.
    expect(event?.note).toBe(`${'€'.repeat(340)}…`);
  });

  it('that wait when a process ends are sent before the end', async () => {
    for (let count = 0; count < 20; count += 1) {
      recorder.event(object, text(`number ${count}`));
    }
    await recorder.flush(30_000);
    expect(await events()).toHaveLength(20);
  });

  it('that cannot be sent do not delay the end, and are counted', async () => {
    const silent = createServer();
    silent.listen(0, '127.0.0.1');
    await once(silent, 'listening');
    const { port } = silent.address() as AddressInfo;
    const transport = new Transport({ server: `http://127.0.0.1:${port}` }, { metrics: createMetrics() });
    const cutOff = new EventRecorder<string>(new KubeClient(transport), {
      reportingController: 'berth.dev/test',
      reportingInstance: 'test',
      logger: pino({ level: 'silent' }),
    });
    for (const message of ['on its way', 'waits', 'waits too']) {
      cutOff.event(object, text(message));
    }
    const began = performance.now();
    await cutOff.flush(100);
    expect(performance.now() - began).toBeLessThan(END_MILLISECONDS);
    const { values } = await transport.metrics.eventsSent.get();
    expect(values).toMatchObject([{ labels: { result: 'dropped' }, value: 2 }]);
    await transport.close();
    silent.close();
  });

  it('that cannot be recorded are counted, and do not block other events', async () => {
    const elsewhere = { ...object, metadata: { ...object.metadata, namespace: 'does-not-exist' } };
    recorder.event(elsewhere, text('lost'));
    await waitFor('the failure', async () => (await counted('failed')) === 1);
    recorder.event(object, text('kept'));
    await waitFor('the other', async () => (await counted('created')) === 1);
  });
});
