import { pino } from 'pino';
import { expect, it } from 'vitest';
import type { Store } from '../kube/cache.ts';
import type { KubeClient } from '../kube/client.ts';
import type { EventRecorder } from '../kube/events.ts';
import { createMetrics, runtimeMetrics } from '../kube/metrics.ts';
import { keyOf, type KubeObject } from '../kube/objects.ts';
import { parseConfig } from './config/config.ts';
import { createControllers } from './index.ts';

/** Returns the names of the controllers that have waiting keys. */
async function busy(registry: ReturnType<typeof createMetrics>): Promise<string[]> {
  runtimeMetrics(registry).beforeScrape.forEach((observe) => observe());
  const { values = [] } = (await registry.getSingleMetric('workqueue_depth')?.get()) ?? {};
  return values.filter(({ value }) => value > 0).map(({ labels }) => String(labels['name']));
}

function object(metadata: { namespace?: string; name: string }): KubeObject {
  const spec = { source: {}, containers: [], vmName: 'desk', template: { spec: { containers: [] } } };
  const identity = { ...metadata, uid: metadata.name, resourceVersion: '1' };
  return { apiVersion: 'v1', kind: 'Any', metadata: identity, spec } as KubeObject;
}

it('a standby remembers the keys of existing objects, and none of deleted objects', async () => {
  const registry = createMetrics();
  const { informers } = createControllers({
    client: { transport: { metrics: {} } } as unknown as KubeClient,
    config: parseConfig({}, 'test'),
    recorder: {} as EventRecorder<never>,
    registry,
    logger: pino({ level: 'silent' }),
    clock: () => 0,
    isLeader: () => false,
  });
  const stores = informers.map(({ cache }) => cache as Store<KubeObject>);
  const objects = [object({ namespace: 'platform-ci', name: 'job-1' }), object({ name: 'platform-ci' })];
  for (const store of stores) {
    objects.forEach((one) => store.put(structuredClone(one)));
  }
  const all = [
    'vm',
    'vmsnapshot',
    'image',
    'iso',
    'imagecache',
    'host',
    'server',
    'certificate',
    'emulator',
    'pool',
    'roles',
    'foreignpods',
    // Its one key is no object.
    'jobtimes',
  ];
  expect((await busy(registry)).toSorted()).toEqual(all.toSorted());
  for (const store of stores) {
    objects.forEach((one) => store.delete(keyOf(one)));
  }
  expect(await busy(registry)).toEqual(['jobtimes']);
});
