import { pino } from 'pino';
import { describe, expect, it, vi } from 'vitest';
import { timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import type { Recorder } from '../objects/events.ts';
import { ForeignPodReconciler } from './controller.ts';

const BEGIN = Date.parse('2026-01-01T00:00:00Z');
const logger = pino({ level: 'silent' });
const HOST: Node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'host', uid: 'n', labels: { 'berth.node-restriction.kubernetes.io/host': 'true' } },
};

function podOn(nodeName: string, name: string): Pod {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { namespace: 'default', name, uid: name, creationTimestamp: timestamp(BEGIN) },
    spec: { nodeName, containers: [] },
  };
}

/** Returns an informer whose cache has these objects in every index. */
function informer<T extends KubeObject>(objects: T[]): Informer<T> {
  const cache = {
    list: () => objects,
    byIndex: () => objects,
    get: (name: string) => objects.find(({ metadata }) => metadata.name === name),
  };
  return { cache } as unknown as Informer<T>;
}

function world(at: { pods?: Pod[]; guards?: Pod[] }) {
  const client = {
    create: vi.fn<(type: unknown, pod: Pod) => Promise<Pod>>((_, pod) => Promise.resolve(pod)),
    delete: vi.fn<() => Promise<undefined>>(() => Promise.resolve(undefined)),
  };
  const time = { now: BEGIN };
  const event = vi.fn<Recorder['event']>();
  const reconciler = new ForeignPodReconciler({
    client: client as unknown as KubeClient,
    config: parseConfig({}, 'test'),
    recorder: { event } as unknown as Recorder,
    consistency: new Consistency(),
    clock: () => time.now,
    foreignPods: informer(at.pods ?? []),
    guards: informer(at.guards ?? []),
    nodes: informer([HOST]),
  });
  return { client, time, event, reconcile: (key: string) => reconciler.reconcile(key, { logger }) };
}

describe('a Pod on a host', () => {
  it('is deleted after the guard exists, and an Event tells it', async () => {
    const { client, event, reconcile } = world({ pods: [podOn('host', 'a')] });
    expect(await reconcile('owner')).toEqual({ requeueAfterMilliseconds: 30_000 });
    expect(client.create.mock.calls[0]?.[1].metadata).toMatchObject({
      namespace: 'berth-system',
      name: 'berth-host-guard',
    });
    expect(client.delete.mock.invocationCallOrder[0]).toBeGreaterThan(
      client.create.mock.invocationCallOrder[0] ?? Infinity,
    );
    expect(event.mock.calls[0]?.[1].message).toContain('Host host runs only Pods of Berth');
    expect(await reconcile('owner')).toEqual({ requeueAfterMilliseconds: 30_000 });
    expect(client.delete).toHaveBeenCalledTimes(1);
  });

  it('is deleted also if a quota refuses the guard', async () => {
    const { client, reconcile } = world({ pods: [podOn('host', 'a')] });
    const message = 'pods "berth-host-guard" is forbidden: exceeded quota';
    client.create.mockRejectedValue(new ApiError(message, { status: 403, reason: 'Forbidden' }));
    await reconcile('owner');
    expect(client.delete).toHaveBeenCalledTimes(1);
  });

  it('stays if its Node is no host', async () => {
    const { client, reconcile } = world({ pods: [podOn('node', 'a')] });
    expect(await reconcile('owner')).toBeUndefined();
    expect(client.delete).not.toHaveBeenCalled();
  });
});

describe('the guard', () => {
  it('is deleted seven minutes after it was created, or after the last removal', async () => {
    const { client, time, reconcile } = world({ pods: [podOn('host', 'a')], guards: [podOn('host', 'g')] });
    expect(await reconcile('guard')).toEqual({ requeueAfterMilliseconds: 420_000 });
    time.now = BEGIN + 400_000;
    await reconcile('owner');
    time.now = BEGIN + 420_000;
    expect(await reconcile('guard')).toEqual({ requeueAfterMilliseconds: 400_000 });
    expect(client.create).not.toHaveBeenCalled();
    client.delete.mockClear();
    time.now = BEGIN + 820_000;
    expect(await reconcile('guard')).toBeUndefined();
    expect(client.delete).toHaveBeenCalledTimes(1);
  });
});
