import { expect, it } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Ref, Resource } from '../../kube/objects.ts';
import { commit, resize } from './disk.ts';

const REF = { namespace: 'platform-default', name: 'mac' };
const EARLY = '2026-11-23T12:00:00Z';
const LATE = '2026-11-23T13:00:00Z';

interface Parts {
  metadata?: object;
  spec?: object;
  status?: object;
}

/** Returns a client that returns the VM and its image, and a list of the client's writes. */
function world({ vm = {}, image }: { vm?: Parts; image?: Parts }) {
  const writes: object[] = [];
  const objects: Record<string, Parts | undefined> = {
    vms: { spec: { image: 'base' }, ...vm, metadata: { ...REF, creationTimestamp: EARLY, ...vm.metadata } },
    images: image && {
      spec: {},
      ...image,
      metadata: { name: 'base', creationTimestamp: EARLY, ...image.metadata },
    },
  };
  const client = {
    get: async (type: Resource<never>, { name }: Ref) => {
      const object = objects[type.plural];
      if (object === undefined) {
        throw new ApiError(`${name} not found`, { status: 404, reason: 'NotFound' });
      }
      return object;
    },
    mergePatch: async (type: Resource<never>, { name }: Ref, { spec }: { spec: object }) => {
      writes.push({ [`${type.plural}/${name}`]: spec });
    },
  } as unknown as KubeClient;
  return { client, writes };
}

const COMMITTED = { 'images/base': { commit: { vmName: 'mac', requestedAt: expect.any(String) } } };
const used = (digest: string) => ({ status: { image: { digest } } });

it.each([
  ['its image', {}, {}],
  ['its image with the digest that it used', used('sha256:a'), { status: { digest: 'sha256:a' } }],
  [
    'its image after its own commit',
    used('sha256:a'),
    { spec: { commit: { vmName: 'mac' } }, status: { digest: 'sha256:b' } },
  ],
])('a commit replaces %s', async (_, vm, image) => {
  const { client, writes } = world({ vm, image });
  await commit(client, REF);
  expect(writes).toEqual([COMMITTED]);
});

it.each([
  ['an image that does not exist', {}, undefined],
  ['an image of a registry', { spec: { image: 'registry.example/base:1' } }, {}],
  ['an image that was made later', {}, { metadata: { creationTimestamp: LATE } }],
  [
    'an image that another VM committed',
    used('sha256:a'),
    { spec: { commit: { vmName: 'other' } }, status: { digest: 'sha256:b' } },
  ],
])('a commit does not replace %s', async (_, vm, image) => {
  const { client, writes } = world({ vm, ...(image && { image }) });
  await expect(commit(client, REF)).rejects.toMatchObject({ status: 409 });
  expect(writes).toEqual([]);
});

it.each([
  [100, '50G', '80G'],
  [100, undefined, undefined],
  [100, '100G', '100G'],
])('a disk grows to %i GB from %s, or %s wanted', async (size, has, wanted) => {
  const status = { resources: { diskSize: has } };
  const { client, writes } = world({ vm: { spec: { diskSize: wanted }, status } });
  await resize(client, REF, size);
  expect(writes).toEqual([{ 'vms/mac': { diskSize: `${size}G` } }]);
});

it.each([
  ['50G', '120G'],
  ['120G', '50G'],
])('a disk of %s with %s wanted does not shrink to 100 GB', async (has, wanted) => {
  const status = { resources: { diskSize: has } };
  const { client, writes } = world({ vm: { spec: { diskSize: wanted }, status } });
  await expect(resize(client, REF, 100)).rejects.toMatchObject({ status: 409 });
  expect(writes).toEqual([]);
});
