import { expect, it, vi } from 'vitest';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { IMAGES_LISTED } from '../../api/v1alpha1/reference.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { ServerWatches } from '../own/watches.ts';
import { Entries } from './entries.ts';

const LIMIT = 1_000;
/** Largest number of entries for the hosts of one namespace. A host could show no more images as cached, because its Node lists no more. */
const SHARE = IMAGES_LISTED;
const SOURCE = { reference: 'registry.example/new:1' };

/** Returns an entry that the server created. It keeps its image on a host, or on none any more. */
function entry(index: number, isUnused: boolean): ImageCacheEntry {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: `cached-${index}`, generation: 1 },
    spec: { reference: `registry.example/${index}:1`, targets: isUnused ? {} : { nodes: ['other'] } },
    status: { observedGeneration: 1 },
  };
}

/** Creates an entry when there are `count` others. The first `unused` ones keep no image. `hosts` are the names of all hosts. */
async function create(unused: number, { count = LIMIT, hosts = ['host', 'other'] } = {}) {
  const entries = Array.from({ length: count }, (_, index) => entry(index, index < unused));
  const client = {
    get: vi.fn().mockResolvedValue(undefined),
    create: vi.fn().mockResolvedValue({}),
    delete: vi.fn().mockResolvedValue(undefined),
  };
  const host = (name: string) => (hosts.includes(name) ? { metadata: { name } } : undefined);
  const watches = { entries: () => entries, entriesFor: () => [], host } as unknown as ServerWatches;
  await new Entries(client as unknown as KubeClient, watches).change(SOURCE, new Set(['host']), () => ({
    nodes: ['host'],
  }));
  return client;
}

it('creates an entry in the place of one that it deletes', async () => {
  const client = await create(1);
  expect(client.delete.mock.calls.map(([, ref]) => ref)).toEqual([{ name: 'cached-0' }]);
  expect(client.create).toHaveBeenCalledTimes(1);
});

it('refuses an entry when all others are in use', async () => {
  await expect(create(0)).rejects.toMatchObject({ status: 403 });
});

it('deletes entries of hosts that do not exist, but only while the cache is full', async () => {
  const full = await create(0, { hosts: ['host'] });
  expect(full.delete).toHaveBeenCalled();
  expect(full.create).toHaveBeenCalledTimes(1);
  expect((await create(0, { hosts: ['host'], count: LIMIT - 1 })).delete).not.toHaveBeenCalled();
});

it('refuses a namespace that has its share, and also counts entries that the watch does not show yet', async () => {
  const client = { get: () => Promise.resolve(undefined), create: vi.fn().mockResolvedValue({}) };
  const shown = Array.from({ length: SHARE - 1 }, (_, index) => entry(index, false));
  const watches = { entries: () => shown, entriesFor: () => [] } as unknown as ServerWatches;
  const entries = new Entries(client as unknown as KubeClient, watches);
  const add = async (index: number, host: string) =>
    await entries.change({ reference: `registry.example/new:${index}` }, new Set([host]), () => ({
      nodes: [host],
    }));
  for (let index = 0; index < SHARE; index += 1) {
    await add(index, 'greedy');
  }
  await expect(add(SHARE, 'greedy')).rejects.toMatchObject({ status: 403 });
  await expect(add(SHARE, 'other')).resolves.toBeUndefined();
  expect(client.create).toHaveBeenCalledTimes(SHARE + 1);
});
