import { expect, it, vi } from 'vitest';
import type { ImageCacheEntry } from '../v1alpha1/imagecacheentry.ts';
import { readReference } from '../v1alpha1/reference.ts';
import { infoItems, listItems, objectInfoItems } from './cacheinfo.ts';
import type { CachedContent, HostNode } from './host.ts';

vi.mock(import('../v1alpha1/reference.ts'), { spy: true });

const REFERENCE = 'registry.example/team/image:1';
const DIGEST = `sha256:${'a'.repeat(64)}`;
const IMAGE: CachedContent = {
  names: [`registry.example/team/image@${DIGEST}`, REFERENCE],
  sizeBytes: 31_230_000_000,
};

function host(name: string, ...images: CachedContent[]): HostNode {
  return { metadata: { name }, status: { images } };
}

function entry(spec: ImageCacheEntry['spec'], status: ImageCacheEntry['status'] = {}): ImageCacheEntry {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: 'entry' },
    spec,
    status,
  };
}

it('shows the state of each host, and leaves out hosts without the image', () => {
  const hosts = ['has', 'waits', 'fails', 'leaves', 'lacks'].map((name) =>
    host(name, ...(name === 'has' || name === 'leaves' ? [IMAGE] : [])),
  );
  const spec = { reference: REFERENCE, targets: { nodes: ['has', 'waits', 'fails'] } };
  const status = {
    nodes: [{ node: 'fails', state: 'Failed', message: 'no room' }],
    holders: ['has', 'leaves'],
  };
  const size = '31.23G';
  expect(infoItems(REFERENCE, hosts, entry(spec, status))).toEqual([
    { node: 'has', status: 'ready', size },
    { node: 'waits', status: 'queued' },
    { node: 'fails', status: 'failed', message: 'no room' },
    { node: 'leaves', status: 'removing', size },
  ]);
  // A VM brought the image, and no entry keeps it.
  expect(infoItems(REFERENCE, [host('other', IMAGE)], undefined)).toMatchObject([{ status: 'ready' }]);
});

it('finds an image by its digest, and an Image object by its name', () => {
  const pinned = `registry.example/team/image:2@${DIGEST}`;
  const object = { names: [`berth.dev/platform-ci/base@${DIGEST}`] };
  expect(infoItems(pinned, [host('one', IMAGE)], undefined)).toHaveLength(1);
  expect(infoItems('berth.dev/platform-ci/base', [host('one', object)], undefined)).toHaveLength(1);
  expect(infoItems('berth.dev/platform-ci/bas', [host('one', object)], undefined)).toEqual([]);
});

it('shows an Image of the namespace before one of the default namespace with the same name', () => {
  const shared = { names: [`berth.dev/platform-default/base@${DIGEST}`] };
  const own = { names: [`berth.dev/platform-ci/base@${DIGEST}`] };
  const nodesOf = (...hosts: HostNode[]) =>
    objectInfoItems('base', { own: 'platform-ci', default: 'platform-default' }, hosts, () => undefined).map(
      ({ node }) => node,
    );
  expect(nodesOf(host('one', shared), host('two', own))).toEqual(['two']);
  expect(nodesOf(host('one', shared), host('two'))).toEqual(['one']);
  expect(nodesOf(host('two'))).toEqual([]);
});

it('lists each image once with the number of its hosts, and no image of another namespace', () => {
  const objects = ['platform-ci/mine', 'platform-default/shared', 'platform-other/theirs'].map((name) => ({
    names: [`berth.dev/${name}@${DIGEST}`],
  }));
  const hosts = [host('one', IMAGE, ...objects), host('two', IMAGE)];
  const names = ['insecure!platform-other/registry.example/private:1'];
  expect(listItems([...hosts, host('three', { names })], 'platform-ci', 'platform-default')).toEqual([
    { image: 'mine', imageId: DIGEST, nodes: 1 },
    { image: 'registry.example/team/image', tag: '1', imageId: DIGEST, size: '31.23G', nodes: 2 },
    { image: 'shared', imageId: DIGEST, nodes: 1 },
  ]);
});

it('lists all tags and Images that name the same content, and no address in the image storage', () => {
  const content = (...names: string[]) => host('one', { names });
  const listed = (one: HostNode) =>
    listItems([one], 'platform-ci', 'platform-default').map(({ image, tag }) => [image, tag]);
  const tags = content('r.example/desktop:15', 'r.example/desktop:latest', `r.example/desktop@${DIGEST}`);
  expect(listed(tags)).toEqual([
    ['r.example/desktop', '15'],
    ['r.example/desktop', 'latest'],
  ]);
  const copied = content(
    `berth.dev/platform-other/x@${DIGEST}`,
    `store.example/platform-other/x@${DIGEST}`,
    `berth.dev/platform-ci/mine@${DIGEST}`,
  );
  expect(listed(copied)).toEqual([['mine', undefined]]);
  const foreign = content(`store.example/platform-other/x@${DIGEST}`, `berth.dev/platform-other/x@${DIGEST}`);
  expect(listed(foreign)).toEqual([]);
  expect(listed(content(`r.example/pinned@${DIGEST}`))).toEqual([['r.example/pinned', undefined]]);
});

it('counts a host once for an Image and its copy of the same name', () => {
  const names = ['platform-ci', 'platform-default'].map((one) => `berth.dev/${one}/base@${DIGEST}`);
  expect(listItems([host('one', { names })], 'platform-ci', 'platform-default')).toEqual([
    { image: 'base', imageId: DIGEST, nodes: 1 },
  ]);
});

it('leaves out images without names, which any host can report', () => {
  const nameless = host('rack', { names: null, sizeBytes: 1 }, IMAGE);
  expect(listItems([nameless], 'platform-a', 'platform-default')).toHaveLength(1);
  expect(infoItems(REFERENCE, [nameless], undefined)).toMatchObject([{ node: 'rack', size: '31.23G' }]);
});

it('parses the names of an image once, however many hosts have the image', () => {
  const hosts = Array.from({ length: 100 }, (_, index) => host(`host-${index}`, { ...IMAGE }));
  vi.mocked(readReference).mockClear();
  expect(listItems(hosts, 'platform-ci', 'platform-default')).toMatchObject([{ tag: '1', nodes: 100 }]);
  expect(readReference).toHaveBeenCalledOnce();
});

it('reads each list of an entry once, however many hosts it names', () => {
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
  const status = { nodes: counted(rows), holders: counted(names) };
  const hosts = names.map((name) => host(name, IMAGE));
  const items = infoItems(REFERENCE, hosts, entry(spec, status));
  expect(items.filter((item) => item.status === 'failed')).toHaveLength(50);
  expect(items.filter((item) => item.status === 'removing')).toHaveLength(50);
  expect(reads).toBe(350);
});
