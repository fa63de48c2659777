import { expect, it } from 'vitest';
import type { Metadata } from './layout.ts';
import { listedNames, namesLength } from './listednames.ts';

const DIGEST = `sha256:${'a'.repeat(64)}`;
/** Limit of etcd for one object, in bytes. */
const OBJECT_BYTES = 1.5 * 1024 * 1024;
const IMAGES_OF_NODE = 200;

const METADATA: Metadata = {
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

it('lists references, Image objects and digests', () => {
  const names = ['berth.dev/platform-ci/base', 'registry.example/base:1'];
  expect(listed(names, ['registry.example/base'])).toEqual([
    'registry.example/base:1',
    `berth.dev/platform-ci/base@${DIGEST}`,
    `registry.example/base@${DIGEST}`,
  ]);
});

it.each([1, 50, IMAGES_OF_NODE, 1_000])(
  'long names fill neither the Node of a host with %i images nor the places of earlier names',
  (images) => {
    const long = Array.from({ length: 64 }, (_, index) => `registry.example/${index}${'x'.repeat(400)}`);
    const first = 'registry.example/first:1';
    const names = listed([first, ...long.map((name) => `${name}:1`)], long, images);
    expect(names[0]).toBe(first);
    expect(JSON.stringify(names).length * Math.min(images, IMAGES_OF_NODE)).toBeLessThan(OBJECT_BYTES);
  },
);

it('all names of usual length are listed, because caches find an image by its name and digest', () => {
  const namespaces = Array.from(
    { length: 63 },
    (_, index) => `berth.dev/platform-team-${index}/macos-with-xcode`,
  );
  const repository = 'registry.example/desktops/macos-with-xcode';
  const names = listed([`${repository}:1`, ...namespaces], [repository], 50);
  expect(names).toHaveLength(65);
  expect(names).toContain(`${repository}@${DIGEST}`);
});

it('the names of many Images do not displace the digest of the index, which Images on hosts of all platforms share', () => {
  const index = `sha256:${'b'.repeat(64)}`;
  const names = Array.from({ length: 64 }, (_, number) => `berth.dev/platform-${number}/base`);
  const repositories = [{ name: 'registry.example/base', open: true, digests: [DIGEST, index] }];
  const shown = listedNames({ ...METADATA, names, repositories }, namesLength(IMAGES_OF_NODE));
  expect(shown).toContain(`registry.example/base@${index}`);
  expect(shown).toContain(`berth.dev/platform-0/base@${DIGEST}`);
});
