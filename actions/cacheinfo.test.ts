import { expect, it, vi } from 'vitest';
import type { CachedContent, HostNode } from '../api/http/host.ts';
import { contentName } from '../api/v1alpha1/cachetargets.ts';
import type { Image } from '../api/v1alpha1/image.ts';
import { readReference } from '../api/v1alpha1/reference.ts';
import { cacheAccess, cacheEntry, type CacheObjects } from '../test/fixtures/cacheaccess.ts';
import { cacheInfo, cacheList } from './cacheinfo.ts';

vi.mock(import('../api/v1alpha1/reference.ts'), { spy: true });

const REFERENCE = 'registry.example/team/image:1';
const DIGEST = `sha256:${'a'.repeat(64)}`;
const INDEX = `sha256:${'b'.repeat(64)}`;
const SIZE = '31.23G';
/** An image for which the registry asks for credentials. */
const PRIVATE: CachedContent = { names: [contentName(DIGEST)], sizeBytes: 31_230_000_000 };
const PUBLIC: CachedContent = { ...PRIVATE, names: [...(PRIVATE.names ?? []), REFERENCE] };

const NOT_READY = { type: 'Ready', status: 'False', lastTransitionTime: '2026-11-23T00:00:00Z' } as const;

function host(name: string, ...images: CachedContent[]): HostNode {
  return { metadata: { name }, status: { images } };
}

function image(namespace: string, name: string, digest = DIGEST): Image {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { name, namespace },
    spec: { source: { registry: { reference: REFERENCE } } },
    status: { digest, content: { type: 'registry', reference: `registry.example/team/image@${INDEX}` } },
  };
}

async function infoOf(name: string, objects: CacheObjects) {
  return (await cacheInfo(cacheAccess(objects).access, name)).items;
}

async function listOf(objects: CacheObjects) {
  return (await cacheList(cacheAccess(objects).access)).items;
}

it('shows the state of each host, and leaves out hosts without the image', async () => {
  const hosts = ['has', 'waits', 'fails', 'leaves', 'lacks'].map((name) =>
    host(name, ...(name === 'has' || name === 'leaves' ? [PRIVATE] : [])),
  );
  const spec = { reference: REFERENCE, targets: { nodes: ['has', 'waits', 'fails'] } };
  const nodes = [{ node: 'fails', state: 'Failed', message: 'no room' }];
  const entry = cacheEntry(spec, { digest: DIGEST, nodes, holders: ['has', 'leaves'] });
  expect(await infoOf('registry.example:443/team/image:1', { hosts, entries: [entry] })).toEqual([
    { node: 'has', status: 'ready', size: SIZE },
    { node: 'waits', status: 'queued' },
    { node: 'fails', status: 'failed', message: 'no room' },
    { node: 'leaves', status: 'removing', size: SIZE },
  ]);
});

it('shows an image without an entry only if everybody may fetch it, or if it is an Image', async () => {
  const hosts = [host('one', PUBLIC), host('two', PRIVATE)];
  expect(await infoOf(REFERENCE, { hosts })).toEqual([{ node: 'one', status: 'ready', size: SIZE }]);
  expect(await infoOf(`registry.example/team/image@${DIGEST}`, { hosts })).toHaveLength(2);
  expect(await infoOf('golden', { hosts, images: [image('platform-ci', 'golden')] })).toHaveLength(2);
  const index = host('arm', { names: [contentName('sha256:arm'), contentName(INDEX)] });
  expect(await infoOf('golden', { hosts: [index], images: [image('platform-default', 'golden')] })).toEqual([
    { node: 'arm', status: 'ready' },
  ]);
});

it('finds the entry of a tag by the digest that hosts have of it, and not by an earlier one', async () => {
  const spec = { reference: REFERENCE, targets: { nodes: ['has', 'waits'] } };
  const nodes = [{ node: 'waits', state: 'Caching' }];
  const former = `sha256:${'c'.repeat(64)}`;
  const status = { digest: DIGEST, formerDigests: [former], nodes, holders: ['has', 'leaves'] };
  const entries = [
    cacheEntry({ reference: 'registry.example/other:1', targets: { all: true } }),
    cacheEntry(spec, status),
  ];
  const old = { names: [contentName(former)] };
  const hosts = [host('has', PRIVATE), host('waits'), host('leaves', PRIVATE), host('old', old)];
  for (const name of [DIGEST, `registry.example/team/image@${DIGEST}`, `registry.example/copy:2@${DIGEST}`]) {
    expect(await infoOf(name, { hosts, entries })).toEqual([
      { node: 'has', status: 'ready', size: SIZE },
      { node: 'waits', status: 'caching' },
      { node: 'leaves', status: 'removing', size: SIZE },
    ]);
  }
  for (const name of [former, `registry.example/team/image@${former}`]) {
    expect(await infoOf(name, { hosts, entries })).toEqual([{ node: 'old', status: 'ready' }]);
  }
});

it('shows no image of another namespace', async () => {
  const theirs = cacheEntry(
    { reference: REFERENCE, targets: { all: true } },
    { digest: DIGEST, holders: ['one'] },
    { namespace: 'platform-qa' },
  );
  const hosts = [host('one', PRIVATE)];
  const objects = { hosts, entries: [theirs], images: [image('platform-qa', 'secret')] };
  expect(await infoOf(REFERENCE, objects)).toEqual([]);
  expect(await listOf(objects)).toEqual([]);
  await expect(infoOf('secret', objects)).rejects.toMatchObject({ kind: 'missing' });
});

it('counts an image that is on the host for others as queued', async () => {
  const entry = cacheEntry({ reference: REFERENCE, targets: { all: true } });
  expect(await infoOf(REFERENCE, { hosts: [host('one', PUBLIC)], entries: [entry] })).toEqual([
    { node: 'one', status: 'queued', size: SIZE },
  ]);
});

it('finds the entry of an Image that was deleted, and refuses one that never existed', async () => {
  const imageRef = { namespace: 'platform-ci', name: 'golden' };
  const entry = cacheEntry({ imageRef, targets: {} }, { digest: DIGEST, holders: ['one'] });
  expect(await infoOf('golden', { hosts: [host('one', PRIVATE)], entries: [entry] })).toEqual([
    { node: 'one', status: 'removing', size: SIZE },
  ]);
  const missing = infoOf('goldne', { hosts: [], entries: [entry] });
  await expect(missing).rejects.toMatchObject({ message: 'images.berth.dev "goldne" not found' });
});

it('lists entries in each state, Images on hosts, and images that everybody may fetch', async () => {
  const other: CachedContent = { names: [contentName('sha256:other'), 'registry.example/other:1'] };
  const entries = [
    cacheEntry({ reference: REFERENCE }, { digest: DIGEST, cached: 1 }),
    cacheEntry({ reference: REFERENCE }, { digest: DIGEST }, { name: 'twice' }),
    cacheEntry({ reference: 'registry.example:443/new:1' }),
    cacheEntry(
      { reference: 'registry.example/bad:1' },
      {
        nodes: [
          { node: 'a', state: 'Queued' },
          { node: 'b', state: 'Failed', message: 'ImageAccessDenied: a password is missing' },
        ],
      },
    ),
    cacheEntry({ reference: `registry.example/pinned@${DIGEST}` }),
    cacheEntry({ reference: `registry.example/pinned@${INDEX}` }),
    cacheEntry(
      { imageRef: { namespace: 'platform-qa', name: 'shared' } },
      { conditions: [{ ...NOT_READY, reason: 'ImageNotFound', message: 'no such Image' }] },
    ),
  ];
  const images = [image('platform-default', 'shared'), image('platform-ci', 'absent', 'sha256:none')];
  images[1] = { ...image('platform-ci', 'absent'), status: { digest: 'sha256:none' } };
  const hosts = [host('one', PUBLIC, other), host('two', other)];
  expect(await listOf({ hosts, entries, images })).toEqual([
    { image: 'platform-qa/shared', nodes: 0, status: 'queued', message: 'no such Image' },
    {
      image: 'registry.example/bad',
      tag: '1',
      nodes: 0,
      status: 'failed',
      message: 'ImageAccessDenied: a password is missing',
    },
    { image: 'registry.example/new', tag: '1', nodes: 0, status: 'queued' },
    { image: 'registry.example/other', tag: '1', imageId: 'sha256:other', nodes: 2, status: 'ready' },
    { image: `registry.example/pinned@${DIGEST}`, nodes: 0, status: 'queued' },
    { image: `registry.example/pinned@${INDEX}`, nodes: 0, status: 'queued' },
    {
      image: 'registry.example/team/image',
      tag: '1',
      imageId: DIGEST,
      size: SIZE,
      nodes: 1,
      status: 'ready',
    },
    { image: 'shared', imageId: DIGEST, size: SIZE, nodes: 1, status: 'ready' },
  ]);
});

it('counts a host once that has an image as a disk alone and as a disk with memory', async () => {
  const disk = { ...PRIVATE, sizeBytes: 15_000_000 };
  const publicDisk = { ...PUBLIC, sizeBytes: 15_000_000 };
  const hosts = [host('one', PRIVATE, disk, PUBLIC, publicDisk)];
  const images = [image('platform-ci', 'golden')];
  expect(await listOf({ hosts, images })).toMatchObject([
    { image: 'golden', nodes: 1 },
    { image: 'registry.example/team/image', nodes: 1 },
  ]);
});

it('shows a tag once, however many versions of it hosts have, and an entry that is being deleted', async () => {
  const older: CachedContent = { names: [contentName('sha256:older'), REFERENCE] };
  const hosts = [host('one', PUBLIC), host('two', older), host('three', older)];
  const tag = { image: 'registry.example/team/image', tag: '1' };
  expect(await listOf({ hosts })).toEqual([{ ...tag, imageId: 'sha256:older', nodes: 3, status: 'ready' }]);
  const entry = cacheEntry(
    { reference: REFERENCE, targets: { all: true } },
    { digest: DIGEST, nodes: [{ node: 'one', state: 'Removing' }], holders: ['one'] },
    { deletionTimestamp: '2026-11-23T00:00:00Z' },
  );
  expect(await listOf({ hosts, entries: [entry] })).toMatchObject([{ ...tag, status: 'removing' }]);
  expect(await infoOf(REFERENCE, { hosts: [host('free')], entries: [entry] })).toEqual([]);
});

it('leaves out images without names, which any host can report', async () => {
  const nameless = host('rack', { names: null, sizeBytes: 1 }, PUBLIC);
  expect(await listOf({ hosts: [nameless] })).toHaveLength(1);
  expect(await infoOf(REFERENCE, { hosts: [nameless] })).toMatchObject([{ node: 'rack', size: SIZE }]);
});

it('parses the names of an image once, however many hosts have the image', async () => {
  const hosts = Array.from({ length: 100 }, (_, index) => host(`host-${index}`, { ...PUBLIC }));
  vi.mocked(readReference).mockClear();
  expect(await listOf({ hosts })).toMatchObject([{ tag: '1', nodes: 100 }]);
  expect(readReference).toHaveBeenCalledOnce();
});

it('reads each list of an entry once, however many hosts it names', async () => {
  let reads = 0;
  const counted = <T>(list: T[]) =>
    new Proxy(list, {
      get: (target, key, receiver) => {
        reads += typeof key === 'string' && /^\d+$/.test(key) ? 1 : 0;
        return Reflect.get(target, key, receiver) as unknown;
      },
    });
  const names = Array.from({ length: 100 }, (_, index) => `host-${index}`);
  const rows = names.slice(0, 50).map((node) => ({ node, state: 'Failed' }));
  const spec = { reference: REFERENCE, targets: { nodes: counted(names), excludeNodes: counted(names) } };
  const entry = cacheEntry(spec, { nodes: counted(rows), holders: counted(names) });
  const items = await infoOf(REFERENCE, { hosts: names.map((name) => host(name, PUBLIC)), entries: [entry] });
  expect(items.filter((item) => item.status === 'failed')).toHaveLength(50);
  expect(items.filter((item) => item.status === 'removing')).toHaveLength(50);
  expect(reads).toBe(350);
});
