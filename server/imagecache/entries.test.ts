import { expect, it, vi } from 'vitest';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Watches } from '../own/watches.ts';
import { Entries } from './entries.ts';

const LIMIT = 1_000;
const SOURCE = { reference: 'registry.example/new:1' };

/** Returns an entry that the server created. It keeps its image on a host, or on none any more. */
function entry(index: number, isUnused: boolean): ImageCacheEntry {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: `cached-${index}`, generation: 1 },
    spec: { reference: `registry.example/${index}:1`, targets: isUnused ? {} : { all: true } },
    status: { observedGeneration: 1 },
  };
}

async function create(unused: number) {
  const entries = Array.from({ length: LIMIT }, (_, index) => entry(index, index < unused));
  const client = {
    get: vi.fn().mockResolvedValue(undefined),
    create: vi.fn().mockResolvedValue({}),
    delete: vi.fn().mockResolvedValue(undefined),
  };
  const watches = { entries: () => entries, entriesFor: () => [] } as unknown as Watches;
  await new Entries(client as unknown as KubeClient, watches).change(SOURCE, () => ({ all: true }));
  return client;
}

it('creates an entry in the place of one that it deletes', async () => {
  const client = await create(1);
  expect(client.delete).toHaveBeenCalledTimes(1);
  expect(client.create).toHaveBeenCalledTimes(1);
});

it('refuses an entry when all others are in use', async () => {
  await expect(create(0)).rejects.toMatchObject({ status: 403 });
});
