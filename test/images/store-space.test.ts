/** Room for images on a small disk of its own: it is reserved before a fetch, watched, and made by removing unused images. */
import { execFileSync } from 'node:child_process';
import { randomBytes, createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { mkdtemp, open, readdir, rm, statfs, utimes, writeFile } from 'node:fs/promises';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import type { HostImageStore, HostImageStoreOptions } from '../../agent/images/store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import type { Holder } from '../../agent/images/local/holders.ts';
import { ensure, keyringOf, openStore } from '../worlds/imagestores.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { pushContainerDisk } from '../fixtures/vmimages.ts';
import { waitFor } from '../../hack/wait.ts';
import { mountTmpfs, whyNoTmpfs } from '../support/tmpfs.ts';
import { unless } from '../support/unless.ts';

const MEBIBYTE = 1024 ** 2;
const DISK_MEBIBYTES = 64;
const IMAGE_MEBIBYTES = 10;
/** Within this time the store checks its disk once. */
const MINUTE_MILLISECONDS = 60_000;
/** Size of the first part of a held answer. The test sends the rest. */
const FIRST_BYTES = 4 * MEBIBYTE;

const missing = whyNoTmpfs();

describe('room for images', unless(missing), () => {
  let folder: string;
  let disk: string;
  let server: Server;
  let url: string;
  let registry: TestRegistry;
  const contents = new Map<string, Buffer>();
  /** If this is set, the server sends only the first part of an answer, and the test gets the response. */
  let held: PromiseWithResolvers<ServerResponse> | undefined;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-space-'));
    registry = await startRegistry({ directory: join(folder, 'registry') });
    server = createServer(({ url: path = '' }, response) => {
      const content = contents.get(path) ?? Buffer.alloc(0);
      response.writeHead(200, { 'content-length': content.length });
      if (held === undefined) {
        response.end(content);
        return;
      }
      response.write(content.subarray(0, FIRST_BYTES));
      held.resolve(response);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });

  afterAll(async () => {
    server?.closeAllConnections();
    server?.close();
    await registry?.close();
    await rm(folder, { recursive: true, force: true });
  });

  beforeEach(() => {
    held = undefined;
    disk = join(folder, 'disk');
    mkdirSync(disk);
    mountTmpfs(disk, DISK_MEBIBYTES);
  });

  afterEach(() => {
    execFileSync('umount', ['--lazy', disk]);
    execFileSync('rmdir', [disk]);
  });

  /** Returns a source with this number of MiB without zeros. */
  function image(name: string, mebibytes = IMAGE_MEBIBYTES): MachineImageSource {
    const content = contents.get(`/${name}`) ?? randomBytes(mebibytes * MEBIBYTE);
    contents.set(`/${name}`, content);
    const sha256 = createHash('sha256').update(content).digest('hex');
    return { type: 'http', url: `${url}/${name}`, sha256 };
  }

  async function take(
    store: HostImageStore,
    holder: Holder,
    name: string,
    mebibytes?: number,
  ): Promise<BaseImage> {
    return await ensure(store, image(name, mebibytes), holder, { name: `berth.dev/team/${name}` });
  }

  async function openHere(options: Partial<HostImageStoreOptions> = {}): Promise<HostImageStore> {
    return await openStore(disk, [registry], options);
  }

  /** Returns the names of the listed images. A Node lists them by their digests. */
  function names(store: HostImageStore): string[] {
    const known = new Map(
      [...contents].map(([path, content]) => {
        const sha256 = createHash('sha256').update(content).digest('hex');
        return [`berth.dev/image@sha256:${sha256}`, path.slice(1)];
      }),
    );
    return store
      .images()
      .flatMap((one) => one.names.map((name) => known.get(name) ?? name))
      .toSorted();
  }

  /** Fetches an image and releases it, so that nothing holds it. */
  async function leave(store: HostImageStore, name: string): Promise<void> {
    await take(store, `machine/${name}`, name);
    store.cloned(`machine/${name}`);
    store.release(`machine/${name}`);
  }

  async function freeBytes(): Promise<number> {
    const { bavail, bsize } = await statfs(disk);
    return bavail * bsize;
  }

  async function partials(): Promise<string[]> {
    return await readdir(join(disk, 'images', 'partial'));
  }

  it('is made by removing the oldest images, but never images of machines, their ISOs or cache entries', async () => {
    const metrics = new Registry();
    const store = await openHere({ budget: 45 * MEBIBYTE, metrics });
    await take(store, 'machine/m', 'machine');
    await take(store, 'entry/e', 'entry');
    await leave(store, 'old');
    await leave(store, 'new');
    // This image is used once more, so the other one is now the oldest.
    await leave(store, 'old');
    await take(store, 'machine/w', 'wanted');
    expect(names(store)).toEqual(['entry', 'machine', 'old', 'wanted']);
    await take(store, 'machine/w', 'another');
    expect(names(store)).toEqual(['another', 'entry', 'machine', 'wanted']);
    expect(await metrics.metrics()).toContain('berth_image_store_evictions_total 2');
    // The order stays after a restart, once the machines are adopted.
    const reopened = await openHere({ budget: 45 * MEBIBYTE });
    const { path } = await take(store, 'machine/m', 'machine');
    reopened.adopt('machine/m', path);
    await take(reopened, 'machine/x', 'more');
    expect(names(reopened)).toContain('machine');
    expect(names(reopened)).toContain('entry');
  });

  it('that cannot be made is DiskFull without the numbers of the host, and nothing is removed', async () => {
    const store = await openHere({ budget: 25 * MEBIBYTE });
    await leave(store, 'kept');
    const refused = take(store, 'machine/l', 'large', 30);
    await expect(refused).rejects.toMatchObject({
      reason: 'DiskFull',
      message: 'The image needs 31457280 bytes, and this host has too little disk space for it',
    });
    expect(names(store)).toEqual(['kept']);
    expect(await partials()).toEqual([]);
  });

  it('of a task is limited by the disk, but not by the budget of images', async () => {
    const store = await openHere({ budget: 15 * MEBIBYTE });
    await take(store, 'machine/m', 'held');
    const { signal } = new AbortController();
    const folder = join(disk, 'tasks', 'uid');
    const copy = async (mebibytes: number): Promise<string> =>
      await store.withRoom(
        { folder, tenant: 'team', bytes: mebibytes * MEBIBYTE },
        signal,
        async () => 'copied',
      );
    expect(await copy(20)).toBe('copied');
    await expect(copy(60)).rejects.toMatchObject({ reason: 'DiskFull' });
    expect(names(store)).toEqual(['held']);
  });

  it('is the free space of the disk without the reserve, for registries and for web servers', async () => {
    const store = await openHere({ minimumFree: 40 * MEBIBYTE });
    const file = join(folder, 'raw');
    await writeFile(file, randomBytes(30 * MEBIBYTE));
    const reference = await pushContainerDisk(registry, 'team/large:1', file, { encoding: 'zstd' });
    const keyring = keyringOf(registry);
    const full = { reason: 'DiskFull' };
    await expect(ensure(store, reference, 'machine/r', { keyring })).rejects.toMatchObject(full);
    await expect(take(store, 'machine/l', 'large', 30)).rejects.toMatchObject(full);
    expect(await partials()).toEqual([]);
    expect(await freeBytes()).toBeGreaterThan(60 * MEBIBYTE);
    await take(store, 'machine/s', 'small', 5);
  });

  it('of two fetches that do not fit together goes to the one whose bytes arrive first', async () => {
    const store = await openHere();
    held = Promise.withResolvers<ServerResponse>();
    const first = take(store, 'machine/a', 'first', 40).catch((error: unknown) => error);
    const response = await held.promise;
    held = undefined;
    await waitFor('the first bytes to come', async () => (await freeBytes()) < 62 * MEBIBYTE);
    await take(store, 'machine/b', 'second', 40);
    response.end(contents.get('/first')?.subarray(FIRST_BYTES));
    expect(await first).toMatchObject({ reason: 'DiskFull' });
    expect(names(store)).toEqual(['second']);
  });

  it('that other programs take meanwhile ends the fetch, whose partial content is removed', async () => {
    const store = await openHere({ minimumFree: 20 * MEBIBYTE });
    held = Promise.withResolvers<ServerResponse>();
    const pulled = take(store, 'machine/a', 'slow', 30).catch((error: unknown) => error);
    await held.promise;
    await waitFor('the first bytes to come', async () => (await freeBytes()) < 62 * MEBIBYTE);
    // The disk of a machine grows.
    const overlay = await open(join(disk, 'overlay'), 'w');
    await overlay.write(randomBytes(40 * MEBIBYTE));
    await overlay.close();
    expect(await pulled).toMatchObject({
      reason: 'DiskFull',
      message: expect.stringContaining('this host has too little disk space') as string,
    });
    expect(await partials()).toEqual([]);
  });

  it('used by held images stays, and only the rest is given back when machines lack room', async () => {
    const store = await openHere({ minimumFree: 20 * MEBIBYTE });
    await leave(store, 'left');
    expect(store.heldBytes()).toBe(0);
    await take(store, 'machine/m', 'kept');
    expect(store.heldBytes()).toBe(IMAGE_MEBIBYTES * MEBIBYTE);
    await store.relieve();
    expect(names(store).toSorted()).toEqual(['kept', 'left']);
    await writeFile(join(disk, 'overlay'), randomBytes(30 * MEBIBYTE));
    await store.relieve();
    expect(names(store)).toEqual(['kept']);
  });

  describe('room, without a request for an image,', () => {
    let end: AbortController;

    beforeEach(() => {
      vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
      end = new AbortController();
    });

    afterEach(() => {
      end.abort();
      vi.useRealTimers();
    });

    it('is given back to machines whose disks grow', async () => {
      const store = await openHere({ minimumFree: 20 * MEBIBYTE });
      store.startTidying(end.signal);
      await leave(store, 'left');
      await take(store, 'machine/m', 'kept');
      await writeFile(join(disk, 'overlay'), randomBytes(30 * MEBIBYTE));
      await vi.advanceTimersByTimeAsync(MINUTE_MILLISECONDS);
      await waitFor('the image that nobody holds to go', () => names(store).join() === 'kept');
    });

    it('is taken back from fetches that nobody continued for a day', async () => {
      const store = await openHere();
      store.startTidying(end.signal);
      for (const name of ['forgotten', 'fresh']) {
        held = Promise.withResolvers<ServerResponse>();
        const gone = new AbortController();
        const given = ensure(store, image(name), 'machine/a', { signal: gone.signal });
        await held.promise;
        gone.abort(new Error('deleted'));
        await expect(given).rejects.toThrow('deleted');
      }
      const [old = '', ...others] = await partials();
      expect(others).toHaveLength(1);
      for (const [name, hours] of [
        [old, 25],
        [others[0] ?? '', 23],
      ] as const) {
        const then = new Date(Date.now() - hours * 60 * MINUTE_MILLISECONDS);
        await utimes(join(disk, 'images', 'partial', name), then, then);
      }
      await vi.advanceTimersByTimeAsync(MINUTE_MILLISECONDS);
      await waitFor('the old one to go', async () => (await partials()).join() === others.join());
    });
  });
});
