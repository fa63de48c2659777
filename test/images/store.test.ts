/** The image store of a host with a real registry: access to images, number of fetches, and images that are kept. */
import { createCipheriv, createHash } from 'node:crypto';
import { readFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { publishDisk } from '../../agent/images/layouts/publish.ts';
import type { HostImageStore } from '../../agent/images/store.ts';
import { ensure, keyringOf, openStore } from '../worlds/imagestores.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { registriesFor, repositoryOf } from '../worlds/pulls.ts';
import { pushContainerDisk, writeRawDisk } from '../fixtures/vmimages.ts';
import { waitFor } from '../../hack/wait.ts';

const DISK_MEBIBYTES = 8;
const MEBIBYTE = 1024 ** 2;
const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const SHA256 = /^sha256:[0-9a-f]{64}$/;

let folder: string;
let registry: TestRegistry;
/** A registry without a password. */
let open: TestRegistry;
let data: string;
let store: HostImageStore;
let disks = 0;

/** Publishes a new disk under a tag at each call. */
async function publish(name: string, where = registry): Promise<{ reference: string; disk: string }> {
  const disk = join(folder, `disk-${disks}`);
  // Every second disk has its data at other places.
  await writeRawDisk(disk, DISK_MEBIBYTES + disks);
  disks += 1;
  return { reference: await pushContainerDisk(where, name, disk), disk };
}

async function digestOf(path: string): Promise<string> {
  return createHash('sha256')
    .update(await readFile(path))
    .digest('hex');
}

/** Returns bytes that depend only on the seed, and that cannot be compressed. */
function chunkOf(seed: number, bytes: number): Buffer {
  const key = createHash('sha256').update(`chunk ${seed}`).digest();
  return createCipheriv('aes-256-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(bytes));
}

/** Returns the number of GET requests for blobs, of which a pull consists. */
async function blobsFetched(where = registry): Promise<number> {
  return (await where.requests()).filter(({ method, path }) => method === 'GET' && path.includes('/blobs/'))
    .length;
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-store-'));
  registry = await startRegistry({ directory: join(folder, 'registry') });
  open = await startRegistry({ directory: join(folder, 'open'), password: false });
});

afterAll(async () => {
  await registry?.close();
  await open?.close();
  await rm(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  data = await mkdtemp(join(folder, 'data-'));
  store = await openStore(data, [registry, open]);
});

afterEach(async () => {
  await rm(data, { recursive: true });
});

describe('an image of a registry', () => {
  it('is the published image, is fetched once for all requests, and is listed by its digest', async () => {
    const { reference, disk } = await publish('team/base:1');
    const metrics = new Registry();
    store = await openStore(data, [registry, open], { metrics });
    const before = await blobsFetched();
    const keyring = keyringOf(registry);
    const percents: number[] = [];
    let counted: number | undefined;
    const onProgress = (percent: number, bytes?: number): void => {
      percents.push(percent);
      counted = bytes;
    };
    const [first, second] = await Promise.all([
      ensure(store, reference, 'machine/a', { keyring, onProgress }),
      ensure(store, reference, 'machine/b', { keyring, name: 'berth.dev/team/base' }),
    ]);
    expect(first).toEqual(second);
    expect(await digestOf(first.path)).toBe(await digestOf(disk));
    expect(first).toMatchObject({ digest: expect.stringMatching(SHA256) as string, format: 'raw' });
    expect(percents.at(-1)).toBe(100);
    expect(counted).toBeGreaterThan(0);
    expect(percents).toEqual(percents.toSorted((a, b) => a - b));
    // The layer and the configuration. The registry writes its log after the last byte was sent.
    const fetched = await waitFor('the log of what was fetched', async () => {
      const count = await blobsFetched();
      return count >= before + 2 && count;
    });
    const reopened = await openStore(data, [registry, open]);
    for (const one of [store, reopened]) {
      expect(one.images()).toEqual([
        { names: [`berth.dev/image@${first.digest}`], sizeBytes: expect.any(Number) as number },
      ]);
    }
    expect(await ensure(reopened, reference, 'machine/c', { keyring })).toEqual(first);
    expect(fetched - before).toBe(2);
    expect(await blobsFetched()).toBe(fetched);
    const text = await metrics.metrics();
    expect(text).toContain('berth_image_pulls_total{result="success"} 1');
    expect(text).toMatch(/berth_image_store_bytes [1-9]/);
    expect(text).toMatch(/berth_image_pulled_bytes_total [1-9]/);
  });

  it('serves nobody without a valid secret, although the host has it, and asks the registry only if necessary', async () => {
    const { reference } = await publish('team/private:1');
    const keyring = keyringOf(registry);
    const { path, digest } = await ensure(store, reference, 'machine/a', { keyring });
    const denied = { reason: 'ImageAccessDenied' };
    const pinned = `${registry.host}/team/private@${digest}`;
    for (const asked of [reference, pinned]) {
      await expect(ensure(store, asked, 'machine/b')).rejects.toMatchObject(denied);
      const wrong = { keyring: keyringOf(registry, 'wrong') };
      await expect(ensure(store, asked, 'machine/b', wrong)).rejects.toMatchObject(denied);
    }
    const asked = (await registry.requests()).length;
    expect((await ensure(store, reference, 'machine/c', { keyring })).path).toBe(path);
    expect((await registry.requests()).length).toBe(asked);
    // The store is opened again, like that of a new agent, and has no remembered answers.
    const reopened = await openStore(data, [registry, open]);
    await expect(ensure(reopened, reference, 'machine/b')).rejects.toMatchObject(denied);
    await ensure(reopened, pinned, 'machine/c', { keyring });
    const methods = (await registry.requests()).slice(asked).filter(({ status }) => status === 200);
    expect(methods.map(({ method }) => method)).toEqual(['HEAD']);
  });

  it('is not given by its digest to a repository that does not have it', async () => {
    const { reference } = await publish('team/secret:1');
    const { digest } = await ensure(store, reference, 'machine/a', { keyring: keyringOf(registry) });
    const elsewhere = `${open.host}/team/secret@${digest}`;
    await expect(ensure(store, elsewhere, 'machine/b')).rejects.toMatchObject({ reason: 'ImageNotFound' });
    // Anyone who knows a manifest can make a registry that serves it.
    const manifest = await registry.skopeo('inspect', '--raw', `docker://${reference}`);
    const hostile = createServer(({ url = '' }, response) => {
      if (!url.includes('/manifests/')) {
        response.writeHead(404).end();
      } else {
        response.writeHead(200, { 'content-type': OCI_MANIFEST }).end(manifest);
      }
    }).listen(0, '127.0.0.1');
    try {
      await once(hostile, 'listening');
      const host = `127.0.0.1:${(hostile.address() as AddressInfo).port}`;
      const { caFile } = registry;
      const registries = [
        { host, plainHttp: true },
        { host: registry.host, caFile },
      ];
      const reopened = await openStore(data, [], { registries });
      const shown = ensure(reopened, `${host}/team/secret@${digest}`, 'machine/b');
      await expect(shown).rejects.toMatchObject({ name: 'ReasonedError' });
    } finally {
      hostile.close();
    }
    const file = { type: 'http' as const, url: `${open.url}/v2/`, sha256: digest.replace('sha256:', '') };
    await expect(ensure(store, file, 'machine/b')).rejects.toMatchObject({ name: 'ReasonedError' });
  });

  it('that was fetched without credentials serves everybody, also while the registry is away', async () => {
    const { reference } = await publish('public/base:1', open);
    const { path } = await ensure(store, reference, 'machine/a');
    await open.stop();
    try {
      expect((await ensure(store, reference, 'machine/b', { keyring: keyringOf(registry) })).path).toBe(path);
      expect((await ensure(await openStore(data, [open]), reference, 'machine/c')).path).toBe(path);
    } finally {
      await open.restart();
    }
  });

  it('that does not exist, or has only another tag, is ImageNotFound', async () => {
    const keyring = keyringOf(registry);
    await publish('team/tagged:1');
    for (const name of ['team/none:1', 'team/tagged:2']) {
      const refused = ensure(store, `${registry.host}/${name}`, 'machine/a', { keyring });
      await expect(refused).rejects.toMatchObject({ reason: 'ImageNotFound' });
    }
    expect(store.images()).toEqual([]);
  });

  it('is refused to machines of another architecture, also if the host has it', async () => {
    const keyring = keyringOf(registry);
    const { reference } = await publish('team/amd64:1');
    const asArm = { keyring, architecture: 'arm64' as const };
    const mismatch = { reason: 'ImageArchitectureMismatch' };
    const fetching = ensure(store, reference, 'machine/a', { keyring });
    await expect(ensure(store, reference, 'machine/b', asArm)).rejects.toMatchObject(mismatch);
    await fetching;
    await expect(ensure(store, reference, 'machine/b', asArm)).rejects.toMatchObject(mismatch);
    expect((await ensure(store, reference, 'machine/c', { keyring })).path).toBe((await fetching).path);
  });

  it("of the cluster's own storage is opened by the host's credentials, which open nothing else", async () => {
    const { reference } = await publish('storage/image:1');
    const credentialsFile = join(folder, 'storage.json');
    await writeFile(credentialsFile, registry.dockerConfigJson());
    const { host, caFile } = registry;
    store = await openStore(data, [], { registries: [{ host, caFile, credentialsFile }] });
    const denied = { reason: 'ImageAccessDenied' };
    await expect(ensure(store, reference, 'machine/a')).rejects.toMatchObject(denied);
    const source = { type: 'storedArtifact' as const, reference };
    const name = 'berth.dev/team/image';
    const { path, digest } = await ensure(store, source, 'machine/b', { name });
    expect(store.images()[0]?.names).toEqual([`berth.dev/image@${digest}`]);
    await expect(ensure(store, reference, 'machine/a')).rejects.toMatchObject(denied);
    expect((await ensure(store, source, 'machine/c', { name })).path).toBe(path);
    // A host of another architecture may have stored and labelled the image.
    const asArm = { name, architecture: 'arm64' as const };
    expect((await ensure(store, source, 'machine/d', asArm)).path).toBe(path);
  });

  it("has its memory only if it is from the cluster's own storage", async () => {
    const credentialsFile = join(folder, 'storage.json');
    await writeFile(credentialsFile, registry.dockerConfigJson());
    const { host, caFile } = registry;
    store = await openStore(data, [], { registries: [{ host, caFile, credentialsFile }] });
    const about = { cpu: 2, memoryBytes: 4 * MEBIBYTE, key: 'b'.repeat(64), savedAt: '2026-11-30T06:00:00Z' };
    const memory = { ...about, ram: join(folder, 'ram'), state: join(folder, 'state') };
    const path = join(folder, 'disk');
    await writeFile(path, chunkOf(200, MEBIBYTE));
    await writeFile(memory.ram, Buffer.concat([Buffer.alloc(3 * MEBIBYTE), chunkOf(201, MEBIBYTE)]));
    await writeFile(memory.state, chunkOf(202, MEBIBYTE));
    const registries = registriesFor(registry);
    const repository = repositoryOf(registries, registry, 'storage/warm');
    const { digest } = await publishDisk(
      { path, virtualSizeBytes: MEBIBYTE, memory, repository, tag: '1' },
      { signal: new AbortController().signal, onBytes: () => undefined },
    );
    await registries.close();
    const reference = `${host}/storage/warm@${digest}`;
    const keyring = keyringOf(registry);
    const disk = await ensure(store, reference, 'machine/a', { keyring });
    expect(disk).toMatchObject({ untrustedMemory: true });
    const warm = await ensure(store, { type: 'storedArtifact', reference }, 'machine/b');
    expect(warm.memory).toMatchObject(about);
    expect(await digestOf(warm.memory?.ram ?? '')).toBe(await digestOf(memory.ram));
    expect(await digestOf(warm.memory?.state ?? '')).toBe(await digestOf(memory.state));
    expect(await ensure(store, reference, 'machine/c', { keyring })).toEqual(disk);
    expect(disk).not.toHaveProperty('memory');
  });

  it('whose tag has moved is fetched again on request, and its name moves with it', async () => {
    const keyring = keyringOf(registry);
    const { reference } = await publish('team/moving:1');
    const old = await ensure(store, reference, 'entry/moving', { keyring });
    await ensure(store, reference, 'machine/a', { keyring });
    store.cloned('machine/a');
    await publish('team/moving:1');
    expect((await ensure(store, reference, 'machine/b', { keyring })).digest).toBe(old.digest);
    store.release('machine/b');
    const moved = await ensure(store, reference, 'entry/moving', { keyring, refresh: true });
    expect(moved.digest).not.toBe(old.digest);
    expect(store.images().map(({ names }) => names)).toEqual([[`berth.dev/image@${moved.digest}`]]);
    // The machine still runs from the old image.
    expect(existsSync(old.path)).toBe(true);
    store.release('machine/a');
    await waitFor('the old image to go with its last machine', () => !existsSync(old.path));
    expect(existsSync(moved.path)).toBe(true);
  });
});

describe('an image with the same chunks as an image on the host', () => {
  const CHUNK_BYTES = 16 * 1024 ** 2;

  /** A disk with two chunks in Berth's own form. The first chunk depends on the number. */
  async function publishVersion(repository: string, number: number): Promise<string> {
    const registries = registriesFor(registry);
    const path = join(folder, 'version');
    try {
      const chunks = [number, 101].map((seed) => chunkOf(seed, CHUNK_BYTES));
      await writeFile(path, Buffer.concat(chunks));
      const disk = { path, virtualSizeBytes: 2 * CHUNK_BYTES, architecture: 'amd64' as const };
      const where = { repository: repositoryOf(registries, registry, repository), tag: String(number) };
      await publishDisk(
        { ...disk, ...where },
        { signal: new AbortController().signal, onBytes: () => undefined },
      );
    } finally {
      await registries.close();
    }
    return `${registry.host}/${repository}:${number}`;
  }

  it('takes them from there only if both are of one repository', async () => {
    const keyring = keyringOf(registry);
    const [first, second] = [await publishVersion('team/family', 1), await publishVersion('team/family', 2)];
    const foreign = await publishVersion('team/stranger', 3);
    const took = async (reference: string): Promise<number> => {
      const before = registry.traffic.received;
      const { path } = await ensure(store, reference, 'machine/a', { keyring });
      const piece = (await readFile(path)).subarray(CHUNK_BYTES, 2 * CHUNK_BYTES);
      expect(piece.equals(chunkOf(101, CHUNK_BYTES))).toBe(true);
      return registry.traffic.received - before;
    };
    expect(await took(first)).toBeGreaterThan(2 * CHUNK_BYTES);
    expect(await took(second)).toBeLessThan(1.1 * CHUNK_BYTES);
    expect(await took(foreign)).toBeGreaterThan(2 * CHUNK_BYTES);
  });
});

describe('the removal for a cache entry', () => {
  it('waits until starting VMs have their clones, and leaves running machines their file', async () => {
    const keyring = keyringOf(registry);
    const { reference } = await publish('team/removed:1');
    const { reference: unneeded } = await publish('team/unneeded:1');
    await ensure(store, unneeded, 'entry/unneeded', { keyring });
    const earlier = await blobsFetched();
    await ensure(store, reference, 'entry/e', { keyring });
    const { path } = await ensure(store, reference, 'machine/a', { keyring });
    const removal = { done: false };
    const removed = store.remove('entry/e', 'team', new AbortController().signal).then(() => {
      removal.done = true;
    });
    await ensure(store, reference, 'machine/b', { keyring });
    store.cloned('machine/a');
    // This removal begins later. If the other one no longer waited, it would have ended before this one.
    await store.remove('entry/unneeded', 'team', new AbortController().signal);
    expect(store.images()).toHaveLength(1);
    expect(removal.done).toBe(false);
    store.cloned('machine/b');
    await removed;
    expect(store.images()).toEqual([]);
    expect(existsSync(path)).toBe(true);
    // The layer and the configuration. The registry writes its log after the last byte was sent.
    await waitFor('the log of what was fetched', async () => (await blobsFetched()) >= earlier + 2);
    const before = await blobsFetched();
    // The image is requested again while machines run from it, so nothing is fetched.
    expect((await ensure(store, reference, 'machine/c', { keyring })).path).toBe(path);
    expect(await blobsFetched()).toBe(before);
    expect(store.images()).toHaveLength(1);
  });

  it('removes the file at once if nobody else holds it; another entry keeps it', async () => {
    const keyring = keyringOf(registry);
    const { signal } = new AbortController();
    const { reference } = await publish('team/two:1');
    const { path } = await ensure(store, reference, 'entry/one', { keyring });
    await ensure(store, reference, 'entry/two', { keyring });
    const reopened = await openStore(data, [registry]);
    await reopened.remove('entry/one', 'team', signal);
    expect(reopened.images()).toHaveLength(1);
    expect(existsSync(path)).toBe(true);
    await reopened.remove('entry/two', 'team', signal);
    expect(reopened.images()).toEqual([]);
    expect(existsSync(path)).toBe(false);
    await reopened.remove('entry/two', 'team', signal);
  });

  it('of one namespace leaves another its image, which was fetched once, and which the registry let each have', async () => {
    const keyring = keyringOf(registry);
    const { signal } = new AbortController();
    const { reference } = await publish('team/both:1');
    const before = await blobsFetched();
    const { path } = await ensure(store, reference, 'entry/one', { keyring, tenant: 'one' });
    const denied = ensure(store, reference, 'entry/two', { tenant: 'two' });
    await expect(denied).rejects.toMatchObject({ reason: 'ImageAccessDenied' });
    expect((await ensure(store, reference, 'entry/two', { keyring, tenant: 'two' })).path).toBe(path);
    // The layer and the configuration. The registry writes its log after the last byte was sent.
    await waitFor('the log of what was fetched', async () => (await blobsFetched()) >= before + 2);
    expect(await blobsFetched()).toBe(before + 2);
    // A VM of the other namespace delays the removal no more than the entry does.
    await ensure(store, reference, 'machine/two', { keyring, tenant: 'two' });
    await store.remove('entry/one', 'one', signal);
    expect(store.images()).toHaveLength(1);
    store.release('machine/two');
    expect(store.heldBytes()).toBeGreaterThan(0);
    await store.remove('entry/two', 'two', signal);
    expect(store.heldBytes()).toBe(0);
  });

  it('that is cancelled changes nothing', async () => {
    const keyring = keyringOf(registry);
    const { reference } = await publish('team/kept:1');
    await ensure(store, reference, 'entry/e', { keyring });
    await ensure(store, reference, 'machine/a', { keyring });
    const giveUp = new AbortController();
    const removed = store.remove('entry/e', 'team', giveUp.signal);
    giveUp.abort(new Error('too late'));
    await expect(removed).rejects.toThrow('too late');
    expect(store.images()).toHaveLength(1);
    store.release('machine/a');
    // The cache entry still holds the image.
    expect(store.heldBytes()).toBeGreaterThan(0);
    await store.remove('entry/e', 'team', new AbortController().signal);
    expect(store.images()).toEqual([]);
  });
});
