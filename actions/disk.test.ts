import { afterEach, expect, it, vi } from 'vitest';
import { pause } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import { ApiError } from '../kube/errors.ts';
import type { Ref, Resource } from '../kube/objects.ts';
import { VMS } from '../api/v1alpha1/resources.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import { pushedImage, requestCommit, requestResize, requireImageStorage, savedImage } from './disk.ts';

vi.mock(import('../base/time.ts'), { spy: true });
afterEach(() => vi.mocked(pause).mockReset());

const REF = { namespace: 'platform-default', name: 'mac' };
const RUNNING = { metadata: REF, spec: {}, status: { phase: 'Running' } } as VM;
const systemNamespace = 'berth-system';
const EARLY = '2026-11-23T12:00:00Z';
const LATE = '2026-11-23T13:00:00Z';

async function commit(client: KubeClient): Promise<void> {
  await requestCommit({ client, systemNamespace }, await client.get(VMS, REF), undefined);
}

async function resize(client: KubeClient, gigabytes: number): Promise<void> {
  await requestResize(client, await client.get(VMS, REF), `${gigabytes}G`);
}

interface Parts {
  metadata?: object;
  spec?: object;
  status?: object;
}

interface Patch {
  metadata: { resourceVersion?: string };
  spec: object;
}

/**
 * Returns a client that returns the VM and its image, and a list of the client's writes. Before each write of the client, other clients make
 * one of the `changes` of the image.
 */
function world({
  vm = {},
  image,
  changes = [],
  info,
}: {
  vm?: Parts;
  image?: Parts;
  changes?: Parts[];
  /** Facts that the operator has published, or the refusal to read them. */
  info?: object | ApiError | undefined;
}) {
  const writes: object[] = [];
  const others = [...changes];
  let version = 1;
  const objects: Record<string, Parts | undefined> = {
    vms: { spec: { image: 'base' }, ...vm, metadata: { ...REF, creationTimestamp: EARLY, ...vm.metadata } },
    images: image && {
      spec: {},
      ...image,
      metadata: { name: 'base', creationTimestamp: EARLY, resourceVersion: '1', ...image.metadata },
    },
  };
  const change = (next: Parts) => {
    version += 1;
    const metadata = { ...objects['images']?.metadata, resourceVersion: String(version) };
    objects['images'] = { ...objects['images'], ...next, metadata };
  };
  const client = {
    get: async (type: Resource<never>, { name }: Ref) => {
      if (info instanceof ApiError) {
        throw info;
      }
      const object = type.plural === 'configmaps' ? info : objects[type.plural];
      if (object === undefined) {
        throw new ApiError(`${name} not found`, { status: 404, reason: 'NotFound' });
      }
      return object;
    },
    mergePatch: async (type: Resource<never>, { name }: Ref, { metadata, spec }: Patch) => {
      others.splice(0, 1).forEach(change);
      if (metadata.resourceVersion !== undefined && metadata.resourceVersion !== String(version)) {
        throw new ApiError(`${name} has been modified`, { status: 409, reason: 'Conflict' });
      }
      writes.push({ [`${type.plural}/${name}`]: spec });
      return objects[type.plural];
    },
  } as unknown as KubeClient;
  return { client, writes };
}

const COMMITTED = { 'images/base': { commit: { vmName: 'mac', requestedAt: expect.any(String) } } };
const used = (digest: string) => ({ status: { image: { digest } } });
const requested = (vmName: string, requestedAt = LATE) => ({ spec: { commit: { vmName, requestedAt } } });
const lastCommit = { requestedAt: LATE, result: 'Failed' };

it.each([
  ['its image', {}, {}],
  ['its image with the digest that it used', used('sha256:a'), { status: { digest: 'sha256:a' } }],
  [
    'its image after its own commit',
    used('sha256:a'),
    { ...requested('mac'), status: { digest: 'sha256:b', lastCommit } },
  ],
  [
    'its image after a commit of another VM failed',
    used('sha256:a'),
    { ...requested('other'), status: { digest: 'sha256:a', lastCommit } },
  ],
])('a commit replaces %s', async (_, vm, image) => {
  const { client, writes } = world({ vm, image });
  await commit(client);
  expect(writes).toEqual([COMMITTED]);
});

it.each([
  ['an image that does not exist', {}, undefined],
  ['an image of a registry', { spec: { image: 'registry.example/base:1' } }, {}],
  ['an image that was made later', {}, { metadata: { creationTimestamp: LATE } }],
  [
    'an image that another VM committed',
    used('sha256:a'),
    { ...requested('other'), status: { digest: 'sha256:b', lastCommit } },
  ],
  ['an image to which another VM is being committed', {}, requested('other')],
  ['an image to which it is being committed', {}, { ...requested('mac'), status: { digest: 'sha256:a' } }],
  [
    'an image to which another VM is being committed after an earlier commit',
    {},
    { ...requested('other'), status: { lastCommit: { ...lastCommit, requestedAt: EARLY } } },
  ],
])('a commit does not replace %s', async (_, vm, image) => {
  const { client, writes } = world({ vm, ...(image && { image }) });
  await expect(commit(client)).rejects.toMatchObject({ kind: 'refused' });
  expect(writes).toEqual([]);
});

it('of two commits of one image at the same time, the second is refused and names the first', async () => {
  const { client, writes } = world({ image: {}, changes: [requested('other')] });
  await expect(commit(client)).rejects.toMatchObject({
    kind: 'refused',
    message: `The commit of VM other to Image base, requested at ${LATE}, has not ended. Wait for its end, or save VM mac as a new image`,
  });
  expect(writes).toEqual([]);
});

it('a commit replaces an image whose status changes at the same time', async () => {
  const { client, writes } = world({ image: {}, changes: [{ status: { phase: 'Ready' } }] });
  await commit(client);
  expect(writes).toEqual([COMMITTED]);
});

it('a commit is refused if others change the image before each attempt', async () => {
  const waits = vi.mocked(pause).mockResolvedValue();
  const changes = Array.from({ length: 100 }, () => ({ status: {} }));
  const { client, writes } = world({ image: {}, changes });
  await expect(commit(client)).rejects.toMatchObject({
    kind: 'busy',
    message: 'Other clients are changing Image base. Try again',
  });
  expect([writes, waits.mock.calls.length]).toEqual([[], 9]);
});

it.each([
  [100, '50G', '80G'],
  [100, undefined, undefined],
  [100, '100G', '100G'],
])('a disk grows to %i GB from %s, or %s wanted', async (size, has, wanted) => {
  const status = { resources: { diskSize: has } };
  const { client, writes } = world({ vm: { spec: { diskSize: wanted }, status } });
  await resize(client, size);
  expect(writes).toEqual([{ 'vms/mac': { diskSize: `${size}G` } }]);
});

it.each([
  ['50G', '120G'],
  ['120G', '50G'],
])('a disk of %s with %s wanted does not shrink to 100 GB', async (has, wanted) => {
  const status = { resources: { diskSize: has } };
  const { client, writes } = world({ vm: { spec: { diskSize: wanted }, status } });
  await expect(resize(client, 100)).rejects.toMatchObject({ kind: 'refused' });
  expect(writes).toEqual([]);
});

it('a saved image asks for the memory of the VM only on request', async () => {
  const { client } = world({ image: {} });
  const sourceOf = async (memory?: boolean) =>
    (await savedImage({ client, systemNamespace }, RUNNING, { imageName: 'new', memory })).spec.source;
  expect(await sourceOf(true)).toEqual({ fromVM: { name: REF.name, memory: true } });
  expect(await sourceOf()).toEqual({ fromVM: { name: REF.name } });
});

it('saves no memory of a VM that does not run, because the save would wait', async () => {
  const { client } = world({});
  const stopped: VM = { ...RUNNING, status: { phase: 'Stopped' } };
  const save = async (memory: boolean) =>
    await savedImage({ client, systemNamespace }, stopped, { imageName: 'new', memory });
  await expect(save(true)).rejects.toMatchObject({
    kind: 'refused',
    message: 'VM mac is Stopped, and only a running VM has a memory to save',
  });
  expect((await save(false)).spec.source).toMatchObject({ fromVM: { name: 'mac' } });
});

it('a saved image can be that of a snapshot', async () => {
  const { client } = world({ image: {}, info: { data: { hasImageStorage: 'true' } } });
  const wanted = { imageName: 'new', snapshot: 'before' };
  const { spec } = await savedImage({ client, systemNamespace }, RUNNING, wanted);
  expect(spec.source).toEqual({ fromVM: { name: REF.name, snapshot: 'before' } });
});

it.each([
  [
    'save',
    async (client: KubeClient) =>
      void (await savedImage({ client, systemNamespace }, RUNNING, { imageName: 'new' })),
  ],
  [
    'push',
    async (client: KubeClient) =>
      void (await pushedImage({ client, systemNamespace }, REF, 'registry.example/a')),
  ],
  ['commit', commit],
])('without image storage, a %s is refused before anything is written', async (_, act) => {
  const { client, writes } = world({ image: {}, info: { data: { hasImageStorage: 'false' } } });
  await expect(act(client)).rejects.toMatchObject({
    kind: 'unsupported',
    message: 'There is no image storage. Set imageStorage in the configuration of the operator',
    causes: [{ reason: 'NoImageStorage' }],
  });
  expect(writes).toEqual([]);
});

it.each([
  ['there is an image storage', { data: { hasImageStorage: 'true' } }],
  ['the operator has told nothing yet', undefined],
  ['the caller may not read it', new ApiError('no', { status: 403, reason: 'Forbidden' })],
])('work that needs an image storage goes on if %s', async (_, info) => {
  const { client } = world({ info });
  await expect(requireImageStorage({ client, systemNamespace })).resolves.toBeUndefined();
});

it.each([
  ['registry.example/Team/desktop:16', '"Team/desktop" is not the name of a repository'],
  [`registry.example/desktop@sha256:${'a'.repeat(64)}`, 'it has no tag'],
])('a push to %s is refused before anything is written', async (reference, why) => {
  const { client } = world({});
  const push = async (to: string) => await pushedImage({ client, systemNamespace }, REF, to);
  await expect(push(reference)).rejects.toThrow(`Nothing can be pushed as ${reference}: ${why}`);
  expect((await push('registry.example/desktop:16')).spec.push?.reference).toBe(
    'registry.example/desktop:16',
  );
});
