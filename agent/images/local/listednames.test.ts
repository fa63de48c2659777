import { expect, it } from 'vitest';
import { listedNames } from './listednames.ts';

const DIGEST = `sha256:${'a'.repeat(64)}`;
/** Limit of etcd for one object, in bytes. */
const OBJECT_BYTES = 1.5 * 1024 * 1024;
const IMAGES_OF_NODE = 200;

function listed(names: string[], repositories: string[] = []): string[] {
  return listedNames({
    version: 1,
    digest: DIGEST,
    format: 'raw',
    virtualSizeBytes: 1,
    sizeBytes: 1,
    architecture: 'amd64',
    names,
    repositories: repositories.map((name) => ({ name, open: true, digests: [DIGEST] })),
    urls: [],
    entries: [],
  });
}

it('lists references, Image objects and digests', () => {
  const names = ['berth.dev/platform-ci/base', 'registry.example/base:1'];
  expect(listed(names, ['registry.example/base'])).toEqual([
    'registry.example/base:1',
    `berth.dev/platform-ci/base@${DIGEST}`,
    `registry.example/base@${DIGEST}`,
  ]);
});

it('long names fill neither the Node nor the places of earlier names', () => {
  const long = Array.from({ length: 64 }, (_, index) => `registry.example/${index}${'x'.repeat(400)}`);
  const names = listed(['registry.example/first:1', ...long.map((name) => `${name}:1`)], long);
  expect(names[0]).toBe('registry.example/first:1');
  expect(JSON.stringify(names).length * IMAGES_OF_NODE).toBeLessThan(OBJECT_BYTES);
});
