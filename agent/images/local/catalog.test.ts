import { pino } from 'pino';
import { expect, it } from 'vitest';
import { contentName } from '../../../api/v1alpha1/cachetargets.ts';
import { Catalog, listedNames, namesLength } from './catalog.ts';
import { Holders } from './holders.ts';
import type { ImageId, StoreLayout, ImageMetadata } from './layout.ts';

const ID: ImageId = 'file/a';
const OTHER: ImageId = 'file/b';

/**
 * A catalog with two images. `saved` has the metadata on the disk, which is full while `isFull` is set. The folders of the images in
 * `damaged` cannot be written.
 */
function newCatalog() {
  const disk = { isFull: false, saved: new Map<ImageId, ImageMetadata>(), damaged: new Set<ImageId>() };
  const layout = {
    touch: async () => undefined,
    save: async (id: ImageId, metadata: ImageMetadata) => {
      if (disk.isFull) {
        throw new Error('the disk is full');
      }
      if (disk.damaged.has(id)) {
        throw new Error('the folder is damaged');
      }
      disk.saved.set(id, structuredClone(metadata));
    },
    disk: (id: ImageId) => `/${id}`,
    discard: async () => undefined,
  } as unknown as StoreLayout;
  const holders = new Holders();
  const log: string[] = [];
  const logger = pino({ level: 'error' }, { write: (line: string) => log.push(line) });
  const catalog = new Catalog(layout, holders, logger);
  const [image, other] = [ID, OTHER].map((id) =>
    catalog.add(id, {
      architecture: 'amd64',
      names: [],
      repositories: [],
      urls: [],
      entries: [],
      tenants: [],
      sizeBytes: 1,
    } as unknown as ImageMetadata),
  );
  return { disk, log, holders, catalog, image: image!, other: other! };
}

it('an assignment that could not be saved is saved by the next one, although the image has its name already', async () => {
  const { disk, catalog, image, other } = newCatalog();
  const asked = { architecture: 'amd64', holder: 'entry/e', tenant: 'team' } as const;
  await catalog.assign(other, ['x'], asked);
  disk.isFull = true;
  await expect(catalog.assign(image, ['x'], asked)).rejects.toThrow('full');
  disk.isFull = false;
  await catalog.assign(image, ['x'], asked);
  expect(disk.saved.get(ID)).toMatchObject({ names: ['x'], entries: ['e'] });
  expect(disk.saved.get(OTHER)).toMatchObject({ names: [], entries: [] });
});

it('the end of an entry that could not be saved is saved later, and until then the entry holds the image', async () => {
  const { disk, holders, catalog, image } = newCatalog();
  holders.add('entry/e', ID);
  await catalog.assign(image, ['x'], { architecture: 'amd64', holder: 'entry/e', tenant: 'team' });
  disk.isFull = true;
  await expect(catalog.unenter('entry/e', image, 'team')).rejects.toThrow('full');
  expect(holders.imagesOf('entry/e')).toEqual([ID]);
  disk.isFull = false;
  await catalog.flush();
  expect(disk.saved.get(ID)).toMatchObject({ names: [], entries: [] });
});

it('the end of the last entry leaves an image to the other namespaces that used it', async () => {
  const { holders, catalog, image } = newCatalog();
  for (const tenant of ['team', 'other']) {
    const holder = `entry/${tenant}` as const;
    holders.add(holder, ID);
    await catalog.assign(image, ['x'], { architecture: 'amd64', holder, tenant });
  }
  await catalog.unenter('entry/team', image, 'team');
  expect(holders.isHeld(ID)).toBe(true);
  await catalog.assign(image, ['x'], { architecture: 'amd64', holder: 'machine/a', tenant: 'third' });
  await catalog.unenter('entry/other', image, 'other');
  expect(image.metadata).toMatchObject({ names: ['x'], entries: [], tenants: ['team', 'third'] });
});

it('the end of an entry leaves an image in the share of its namespace while a machine of the namespace holds it', async () => {
  const { holders, catalog, image } = newCatalog();
  holders.add('entry/e', ID);
  holders.add('machine/a', ID);
  for (const holder of ['entry/e', 'machine/a'] as const) {
    await catalog.assign(image, ['x'], { architecture: 'amd64', holder, tenant: 'team' });
  }
  await catalog.unenter('entry/e', image, 'team');
  expect(image.metadata).toMatchObject({ entries: [], tenants: ['team'] });
});

it('an entry holds no image that was removed, also if another namespace brings the same image again', async () => {
  const { holders, catalog, image } = newCatalog();
  holders.add('entry/e', ID);
  await catalog.assign(image, ['x'], { architecture: 'amd64', holder: 'entry/e', tenant: 'team' });
  await catalog.discard(image);
  expect(holders.isHeld(ID)).toBe(false);
});

it('a Node lists the images of entries of all namespaces in turn, and then the other images', () => {
  const { catalog, image, other } = newCatalog();
  const add = (id: ImageId, digest: string, about: Partial<ImageMetadata>) =>
    catalog.add(id, { ...image.metadata, names: ['x'], digest, entries: ['e'], ...about });
  other.metadata.names = [];
  add('file/large', 'large', { tenants: ['greedy'], sizeBytes: 9 });
  add('file/next', 'next', { tenants: ['greedy'], sizeBytes: 8 });
  add('file/free', 'free', { tenants: ['other'], entries: [], sizeBytes: 7 });
  add('file/small', 'small', { tenants: ['modest'], sizeBytes: 1 });
  expect(catalog.list().map(({ names }) => names)).toEqual(
    ['large', 'small', 'next', 'free'].map((digest) => [contentName(digest)]),
  );
});

it('an image that two namespaces have counts for one of them alone, so it delays few of their other images', () => {
  const { catalog, image, other } = newCatalog();
  other.metadata.names = [];
  const images: [digest: string, ...tenants: string[]][] = [
    ['shared-1', 'greedy', 'modest'],
    ['shared-2', 'greedy', 'modest'],
    ['shared-3', 'greedy', 'modest'],
    ['third-1', 'third'],
    ['third-2', 'third'],
    ['third-3', 'third'],
    ['own', 'modest'],
  ];
  for (const [index, [digest, ...tenants]] of images.entries()) {
    const about = { names: ['x'], digest, entries: ['e'], tenants, sizeBytes: 100 - index };
    catalog.add(`file/${index}`, { ...image.metadata, ...about });
  }
  expect(catalog.list().map(({ names }) => names)).toEqual(
    ['shared-1', 'shared-2', 'third-1', 'shared-3', 'third-2', 'own', 'third-3'].map((digest) => [
      contentName(digest),
    ]),
  );
});

it('an image that cannot be saved does not prevent the assignment of others, is logged once, and is saved later', async () => {
  const { disk, log, catalog, image, other } = newCatalog();
  const asked = { architecture: 'amd64', holder: 'machine/a', tenant: 'team' } as const;
  await catalog.assign(other, ['x'], asked);
  disk.damaged.add(OTHER);
  await catalog.assign(image, ['x'], asked);
  await catalog.assign(image, ['y'], asked);
  await catalog.flush();
  expect(disk.saved.get(ID)).toMatchObject({ names: ['x', 'y'] });
  expect(log).toEqual([
    expect.stringMatching(/the folder is damaged.*file\/b|file\/b.*the folder is damaged/),
  ]);
  disk.damaged.clear();
  await catalog.flush();
  expect(disk.saved.get(OTHER)).toMatchObject({ names: [] });
});

it('many tags of one owner displace each other, and not the name of another tenant', async () => {
  const { catalog, image } = newCatalog();
  const assign = async (name: string): Promise<void> =>
    await catalog.assign(image, [name], {
      architecture: 'amd64',
      holder: 'machine/m',
      tenant: 'team',
    });
  await assign('berth.dev/team/image');
  for (let tag = 0; tag < 70; tag += 1) {
    await assign(`registry.example/many/image:${tag}`);
  }
  expect(image.metadata.names).toHaveLength(64);
  expect(image.metadata.names).toContain('berth.dev/team/image');
  expect(image.metadata.names).toContain('registry.example/many/image:69');
});

const DIGEST = `sha256:${'a'.repeat(64)}`;
/** Limit of etcd for one object, in bytes. */
const OBJECT_BYTES = 1.5 * 1024 * 1024;
const IMAGES_OF_NODE = 200;

const METADATA: ImageMetadata = {
  version: 1,
  digest: DIGEST,
  format: 'raw',
  virtualSizeBytes: 1,
  sizeBytes: 1,
  architecture: 'amd64',
  names: [],
  repositories: [],
  urls: [],
  entries: [],
  tenants: [],
};

function listed(names: string[], repositories: string[] = [], images = 1): string[] {
  const origins = repositories.map((name) => ({ name, open: true, digests: [DIGEST] }));
  return listedNames({ ...METADATA, names, repositories: origins }, namesLength(images));
}

it('lists digests, and references of images that everybody may fetch, but no names of Images and no other references', () => {
  const names = ['berth.dev/platform-ci/base', 'iso berth.dev/platform-ci/disc', 'registry.example/base:1'];
  expect(listed(names, ['registry.example/base'])).toEqual([
    contentName(DIGEST),
    'registry.example/base:1',
    `registry.example/base@${DIGEST}`,
  ]);
  const repositories = [{ name: 'registry.example/base', open: false, digests: [DIGEST] }];
  expect(listedNames({ ...METADATA, names, repositories }, namesLength(1))).toEqual([contentName(DIGEST)]);
  const insecure = ['insecure!platform-ci/registry.example/base:1'];
  expect(listed(insecure, ['registry.example/base'])).toEqual([contentName(DIGEST)]);
});

it.each([1, 50, IMAGES_OF_NODE, 1_000])(
  'long names fill neither the Node of a host with %i images nor the places of earlier names',
  (images) => {
    const long = Array.from({ length: 64 }, (_, index) => `registry.example/${index}${'x'.repeat(400)}`);
    const first = 'registry.example/first:1';
    const origins = ['registry.example/first', ...long];
    const names = listed([first, ...long.map((name) => `${name}:1`)], origins, images);
    expect(names.slice(0, 2)).toEqual([contentName(DIGEST), first]);
    expect(JSON.stringify(names).length * Math.min(images, IMAGES_OF_NODE)).toBeLessThan(OBJECT_BYTES);
  },
);

it('long references do not displace the digest of the index, which hosts of all platforms share', () => {
  const index = `sha256:${'b'.repeat(64)}`;
  const names = Array.from({ length: 64 }, (_, tag) => `registry.example/base:${tag}${'x'.repeat(100)}`);
  const repositories = [{ name: 'registry.example/base', open: true, digests: [DIGEST, index] }];
  const shown = listedNames({ ...METADATA, names, repositories }, namesLength(IMAGES_OF_NODE));
  expect(shown.slice(0, 3)).toEqual([contentName(DIGEST), contentName(index), names[0]]);
});
