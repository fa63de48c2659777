import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { createServer, type RequestListener, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { basename, dirname, join } from 'node:path';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { classOf } from '../../api/v1alpha1/reasons.ts';
import { HostImageStore, type HostImageStoreOptions } from './store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import type { BaseImage } from '../disks/disk.ts';
import { Catalog, nameOfISO } from './local/catalog.ts';
import type { Holder } from './local/holders.ts';
import { makeFolder } from '../../test/support/folder.ts';

/** What all requests of these tests have in common. */
const ASKED = { tenant: 'team', onProgress: () => undefined, onWait: () => undefined };

const RAW_BYTES = 1024 * 1024;
/** Within this time the store removes unneeded images once. */
const MINUTE_MILLISECONDS = 60_000;

describe('the image store', () => {
  let directory: string;
  let shared: string;
  let store: HostImageStore;
  let servers: Server[];

  beforeEach(async () => {
    directory = makeFolder();
    shared = join(directory, 'shared');
    await mkdir(shared);
    store = await open();
    servers = [];
  });

  afterEach(async () => {
    for (const server of servers) {
      server.close();
    }
  });

  async function open(
    allowLoopbackHttp = true,
    options: Partial<HostImageStoreOptions> = {},
  ): Promise<HostImageStore> {
    return await HostImageStore.open({
      dataDirectory: join(directory, 'data'),
      sharedRoots: [shared],
      architecture: 'amd64',
      allowLoopbackHttp,
      registries: [],
      minimumFree: 0,
      metrics: new Registry(),
      logger: pino({ level: 'silent' }),
      ...options,
    });
  }

  async function ensure(source: MachineImageSource, from = store): Promise<BaseImage> {
    const { signal } = new AbortController();
    return await from.ensure(source, { holder: 'machine/a', ...ASKED, signal });
  }

  async function serve(listener: RequestListener): Promise<string> {
    const server = createServer(listener).listen(0, '127.0.0.1');
    servers.push(server);
    await once(server, 'listening');
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  function qemuImg(...parameters: string[]): void {
    execFileSync('qemu-img', parameters, { stdio: 'pipe' });
  }

  async function stored(): Promise<string[]> {
    const names = await readdir(join(directory, 'data', 'images'), { recursive: true });
    return names.filter((name) => /^(sha256|file|stored|shared|partial)\//.test(name));
  }

  describe('shared files', () => {
    it('are copied into the store once, also after a restart', async () => {
      const path = join(shared, 'disk.raw');
      const content = Buffer.alloc(RAW_BYTES, 7);
      await writeFile(path, content);
      const digest = `sha256:${createHash('sha256').update(content).digest('hex')}`;
      const image = await ensure({ type: 'sharedFile', path: basename(path) });
      expect(image).toMatchObject({ digest, format: 'raw', virtualSizeBytes: RAW_BYTES });
      expect(await readFile(image.path)).toEqual(content);
      const { ino } = await stat(image.path);
      expect(await ensure({ type: 'sharedFile', path: basename(path) }, await open())).toEqual(image);
      expect((await stat(image.path)).ino).toBe(ino);
    });

    it('are ImageFetchFailed while their file server does not answer', async () => {
      await writeFile(join(directory, 'stat'), '#!/bin/sh\nexec sleep 600\n', { mode: 0o755 });
      vi.stubEnv('PATH', `${directory}:${process.env['PATH']}`);
      vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
      onTestFinished(() => void vi.useRealTimers().unstubAllEnvs());
      const given = ensure({ type: 'sharedFile', path: 'disk.raw' });
      given.catch(() => undefined);
      await vi.advanceTimersByTimeAsync(120_000);
      await expect(given).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    });

    it('are distinguished from their earlier content after a change', async () => {
      const path = join(shared, 'disk.raw');
      await writeFile(path, Buffer.alloc(RAW_BYTES, 1));
      const before = await ensure({ type: 'sharedFile', path: basename(path) });
      await writeFile(path, Buffer.alloc(RAW_BYTES, 2));
      expect((await ensure({ type: 'sharedFile', path: basename(path) })).digest).not.toBe(before.digest);
    });

    it.each([
      ['a path outside', () => '/etc/passwd'],
      ['a path that climbs out', () => '../outside.raw'],
      ['a link that leads out', () => 'link'],
      ['a link to a folder outside', () => 'folder/outside.raw'],
      ['the root itself', () => '.'],
      ['a file that is not there', () => 'none'],
      ['its whole path', () => join(shared, 'disk.raw')],
    ])('%s is ImageNotFound', async (_name, path) => {
      await writeFile(join(directory, 'outside.raw'), Buffer.alloc(512));
      await symlink(join(directory, 'outside.raw'), join(shared, 'link'));
      await symlink(directory, join(shared, 'folder'));
      const refused = ensure({ type: 'sharedFile', path: path() });
      const message = `${path()} is not a file below a shared folder of this host`;
      await expect(refused).rejects.toMatchObject({ reason: 'ImageNotFound', message });
    });

    it.each([
      ['a backing file', ['-b', '/etc/passwd', '-F', 'raw', '-u'], 'backing file'],
      ['a backing file over the network', ['-b', 'nbd://127.0.0.1:1/x', '-F', 'raw', '-u'], 'backing file'],
      ['a data file', ['-o', 'data_file=DATA,data_file_raw=on'], 'data file'],
    ])('a qcow2 with %s is ImageInvalid', async (_name, options, message) => {
      const path = join(shared, 'hostile.qcow2');
      const filled = options.map((option) => option.replace('DATA', join(directory, 'data.raw')));
      qemuImg('create', '-q', '-f', 'qcow2', ...filled, path, '1M');
      await expect(ensure({ type: 'sharedFile', path: basename(path) })).rejects.toMatchObject({
        reason: 'ImageInvalid',
        message: expect.stringContaining(message) as string,
      });
    });

    it('a qcow2 with snapshots, or cut off in its header, is ImageInvalid', async () => {
      const path = join(shared, 'disk.qcow2');
      qemuImg('create', '-q', '-f', 'qcow2', path, '1M');
      await expect(ensure({ type: 'sharedFile', path: basename(path) })).resolves.toMatchObject({
        format: 'qcow2',
      });
      qemuImg('snapshot', '-c', 'one', path);
      await expect(ensure({ type: 'sharedFile', path: basename(path) })).rejects.toMatchObject({
        reason: 'ImageInvalid',
      });
      await writeFile(path, (await readFile(path)).subarray(0, 32));
      await expect(ensure({ type: 'sharedFile', path: basename(path) })).rejects.toMatchObject({
        reason: 'ImageInvalid',
      });
    });

    it('an encrypted qcow2 is ImageInvalid', async () => {
      const path = join(shared, 'disk.qcow2');
      qemuImg('create', '-q', '-f', 'qcow2', path, '1M');
      const content = await readFile(path);
      // The bytes from 32 on are the header's field for the encryption method; 1 is AES.
      content.writeUInt32BE(1, 32);
      await writeFile(path, content);
      await expect(ensure({ type: 'sharedFile', path: basename(path) })).rejects.toMatchObject({
        reason: 'ImageInvalid',
        message: expect.stringContaining('encrypted') as string,
      });
    });

    it('a file that is no disk is ImageInvalid', async () => {
      const path = join(shared, 'text');
      await writeFile(path, 'hello');
      await expect(ensure({ type: 'sharedFile', path: basename(path) })).rejects.toMatchObject({
        reason: 'ImageInvalid',
      });
    });
  });

  describe("files of the cluster's image storage", () => {
    it('are copied if their digest is right', async () => {
      qemuImg('create', '-q', '-f', 'qcow2', join(shared, 'stored'), String(RAW_BYTES));
      const sha256 = createHash('sha256')
        .update(await readFile(join(shared, 'stored')))
        .digest('hex');
      const source: MachineImageSource = { type: 'storedFile', path: 'stored', sha256 };
      const host = await open(true, { storageFolder: shared });
      expect(await ensure(source, host)).toMatchObject({ digest: `sha256:${sha256}`, format: 'qcow2' });
      await expect(ensure({ ...source, sha256: '0'.repeat(64) }, host)).rejects.toMatchObject({
        reason: 'DigestMismatch',
      });
      // The agent stores every file as qcow2, also if the file of the Image or ISO was raw.
      const { signal } = new AbortController();
      const asRaw = { holder: 'machine/a', ...ASKED, format: 'Raw', signal } as const;
      expect(await host.ensure(source, asRaw)).toMatchObject({
        format: 'qcow2',
        virtualSizeBytes: RAW_BYTES,
      });
    });

    // The operator names only files that the storage has. So the fault is that of this host, and its VMs must not fail at once.
    it.each([
      ['does not know the folder', undefined, /no folder with this file.*images.storageFolder/],
      ['has not mounted the folder', () => shared, /^stored is not in the image storage of this.*mounted/],
    ])('are asked for again on a host that %s', async (_, folder, message) => {
      const host = await open(true, { storageFolder: folder?.() });
      const missing = ensure({ type: 'storedFile', path: 'stored', sha256: '0'.repeat(64) }, host);
      await expect(missing).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
      await expect(missing).rejects.toThrow(message);
      expect(classOf('ImageFetchFailed', 'VM')).toBe('passing');
    });
  });

  it('a file of a cache entry is listed by its Image, also after a restart, until the entry releases it', async () => {
    await writeFile(join(shared, 'disk.raw'), Buffer.alloc(RAW_BYTES, 4));
    const { signal } = new AbortController();
    const options = { signal, onProgress: () => undefined, onWait: () => undefined };
    const source: MachineImageSource = { type: 'sharedFile', path: 'disk.raw' };
    const name = 'berth.dev/team/disk';
    const { digest } = await store.ensure(source, { ...options, holder: 'entry/e', tenant: 'team', name });
    const reopened = await open();
    expect(reopened.images()).toEqual([{ names: [`berth.dev/image@${digest}`], sizeBytes: RAW_BYTES }]);
    const changes: number[] = [];
    reopened.onChange(() => changes.push(reopened.images().length));
    await reopened.remove('entry/e', 'team', signal);
    expect(changes).toEqual([0]);
    expect((await open()).images()).toEqual([]);
    expect(await readFile(join(shared, 'disk.raw'))).toHaveLength(RAW_BYTES);
  });

  describe('http', () => {
    const content = Buffer.alloc(RAW_BYTES, 3);
    const sha256 = createHash('sha256').update(content).digest('hex');

    it('fetches an image once for all callers at the same time, and not again after a restart', async () => {
      let requests = 0;
      const url = await serve((_request, response) => {
        requests += 1;
        response.end(content);
      });
      const source: MachineImageSource = { type: 'http', url, sha256 };
      const images = await Promise.all([ensure(source), ensure(source), ensure(source)]);
      expect(images[0]).toMatchObject({ digest: `sha256:${sha256}`, virtualSizeBytes: RAW_BYTES });
      expect(new Set(images.map(({ path }) => path)).size).toBe(1);
      await ensure(source, await open());
      expect(requests).toBe(1);
      expect(await readFile(images[0]?.path ?? '')).toEqual(content);
      expect(store.images()).toEqual([{ names: [`berth.dev/image@sha256:${sha256}`], sizeBytes: RAW_BYTES }]);
    });

    it('an image without a name stays for its machine after a restart, and an image that nobody needs goes', async () => {
      vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
      onTestFinished(() => void vi.useRealTimers());
      const url = await serve((request, response) => response.end(Buffer.from(request.url!.padEnd(512))));
      const ensureNamed = async (path: string, holder: Holder): Promise<string> => {
        const digest = createHash('sha256').update(path.padEnd(512)).digest('hex');
        const source: MachineImageSource = { type: 'http', url: `${url}${path}`, sha256: digest };
        const { signal } = new AbortController();
        const options = { holder, ...ASKED, name: 'berth.dev/team/disk', signal };
        return (await store.ensure(source, options)).path;
      };
      // Each image takes the name of the image before it.
      const running = await ensureNamed('/running', 'machine/running');
      const left = await ensureNamed('/left', 'machine/left');
      const named = await ensureNamed('/named', 'machine/named');
      const reopened = await open();
      await vi.advanceTimersByTimeAsync(2 * MINUTE_MILLISECONDS);
      expect([running, left, named].map((path) => existsSync(path))).toEqual([true, true, true]);
      reopened.adopt('machine/running', running);
      const end = new AbortController();
      reopened.startTidying(end.signal);
      await vi.advanceTimersByTimeAsync(MINUTE_MILLISECONDS);
      expect([running, left, named].map((path) => existsSync(path))).toEqual([true, false, true]);
      end.abort();
      expect(vi.getTimerCount()).toBe(0);
    });

    it('an Image and an ISO of the same name are both kept and listed', async () => {
      const url = await serve((request, response) => response.end(Buffer.from(request.url!.padEnd(512))));
      const name = 'berth.dev/team/desktop';
      const ensureNamed = async (path: string, holder: Holder, named: string): Promise<BaseImage> => {
        const digest = createHash('sha256').update(path.padEnd(512)).digest('hex');
        const source: MachineImageSource = { type: 'http', url: `${url}${path}`, sha256: digest };
        const { signal } = new AbortController();
        return await store.ensure(source, { holder, ...ASKED, name: named, signal });
      };
      const image = await ensureNamed('/image', 'machine/a', name);
      store.release('machine/a');
      const iso = await ensureNamed('/iso', 'machine/b', nameOfISO(name));
      store.release('machine/b');
      const listed = store.images().flatMap(({ names }) => names);
      expect(new Set(listed)).toEqual(new Set([image, iso].map((one) => `berth.dev/image@${one.digest}`)));
      const reopened = await open();
      expect([image.path, iso.path].map((path) => existsSync(path))).toEqual([true, true]);
      expect(reopened.images()).toHaveLength(2);
    });

    it('an image does not wait for the removal of the image that had its name', async () => {
      const url = await serve((request, response) => response.end(Buffer.from(request.url!.padEnd(512))));
      const ensureNamed = async (path: string): Promise<void> => {
        const digest = createHash('sha256').update(path.padEnd(512)).digest('hex');
        const source: MachineImageSource = { type: 'http', url: `${url}${path}`, sha256: digest };
        const { signal } = new AbortController();
        const options = {
          name: 'berth.dev/team/disk',
          signal,
          onProgress: () => undefined,
          onWait: () => undefined,
        };
        await store.ensure(source, { ...options, holder: `machine/${path}`, tenant: 'team' });
      };
      await ensureNamed('/old');
      store.release('machine//old');
      const removal = Promise.withResolvers<void>();
      const discard = vi.spyOn(Catalog.prototype, 'discard').mockReturnValue(removal.promise);
      onTestFinished(() => discard.mockRestore());
      const ensured = ensureNamed('/new');
      await expect.poll(() => discard).toHaveBeenCalledOnce();
      // A request that waits for the removal gets its failure.
      removal.reject(new Error('the disk has a fault'));
      await ensured;
    });

    it('an image with damaged metadata is fetched again, and stays for the machine that runs from it', async () => {
      let requests = 0;
      const url = await serve((_request, response) => {
        requests += 1;
        response.end(content);
      });
      const source: MachineImageSource = { type: 'http', url, sha256 };
      const { path } = await ensure(source);
      await writeFile(join(dirname(path), 'image.json'), '{');
      const reopened = await open();
      reopened.adopt('machine/running', path);
      expect(await ensure(source, reopened)).toMatchObject({ path });
      expect(requests).toBe(2);
      expect(await readFile(path)).toEqual(content);
      reopened.release('machine/m');
      expect(reopened.heldBytes()).toBe(RAW_BYTES);
    });

    it('files with a fault do not keep the store from opening', async () => {
      const source: MachineImageSource = {
        type: 'http',
        url: await serve((_, to) => to.end(content)),
        sha256,
      };
      const { path } = await ensure(source);
      // A read of this folder in place of the file fails like a read of a faulty disk.
      const metadata = join(dirname(path), 'image.json');
      await rm(metadata);
      await mkdir(metadata);
      const reopened = await open();
      expect(reopened.images()).toEqual([]);
      expect(existsSync(path)).toBe(true);
    });

    it('an image with another digest is DigestMismatch, and leaves nothing', async () => {
      const url = await serve((_request, response) => response.end('something else'));
      const refused = ensure({ type: 'http', url, sha256 });
      await expect(refused).rejects.toMatchObject({ reason: 'DigestMismatch' });
      expect(await stored()).toEqual([]);
    });

    it('an image that breaks off is ImageFetchFailed, and its bytes are not used', async () => {
      let answers = 0;
      const url = await serve((_request, response) => {
        answers += 1;
        // The server refuses all later requests.
        if (answers > 1) {
          response.writeHead(403).end();
          return;
        }
        response.writeHead(200, { 'content-length': content.length });
        response.write(content.subarray(0, 1000));
        setImmediate(() => response.destroy());
      });
      await expect(ensure({ type: 'http', url, sha256 })).rejects.toMatchObject({
        reason: 'ImageFetchFailed',
      });
      const reopened = await open();
      expect([...store.images(), ...reopened.images()]).toEqual([]);
      expect((await stored()).filter((name) => !name.startsWith('partial/'))).toEqual([]);
    });

    it('a caller that leaves does not end the fetch of another', async () => {
      const asked = Promise.withResolvers<ServerResponse>();
      const url = await serve((_request, response) => {
        response.write(content.subarray(0, 10));
        asked.resolve(response);
      });
      const source: MachineImageSource = { type: 'http', url, sha256 };
      const impatient = new AbortController();
      const given = store.ensure(source, {
        holder: 'machine/b',
        tenant: 'team',
        signal: impatient.signal,
        onProgress: () => undefined,
        onWait: () => undefined,
      });
      const other = ensure(source);
      impatient.abort(new Error('deleted'));
      await expect(given).rejects.toThrow('deleted');
      (await asked.promise).end(content.subarray(10));
      await expect(other).resolves.toMatchObject({ digest: `sha256:${sha256}` });
    });

    it('an address of the host itself is refused unless configured, also by a name', async () => {
      const url = await serve((_request, response) => response.end(content));
      const strict = await open(false);
      for (const address of [
        url,
        url.replace('127.0.0.1', 'localhost'),
        url.replace('127.0.0.1', '[::ffff:127.0.0.1]'),
      ]) {
        await expect(ensure({ type: 'http', url: address, sha256 }, strict)).rejects.toMatchObject({
          reason: 'ImageFetchFailed',
          message: expect.stringContaining('is not allowed') as string,
        });
      }
    });

    it('a compressed image has the digest of its compressed form, and is used unpacked', async () => {
      const packed = execFileSync('xz', ['-0', '-c'], { input: content });
      const digest = createHash('sha256').update(packed).digest('hex');
      const url = await serve((_request, response) => response.end(packed));
      const image = await ensure({ type: 'http', url: `${url}/disk.img`, sha256: digest });
      expect(image).toMatchObject({ digest: `sha256:${digest}`, format: 'raw', virtualSizeBytes: RAW_BYTES });
      expect((await readFile(image.path)).equals(content)).toBe(true);
      expect(await stored()).toHaveLength(3);
    });

    it('a disk that names other files is not used', async () => {
      const path = join(directory, 'hostile.qcow2');
      qemuImg('create', '-q', '-f', 'qcow2', '-b', '/etc/passwd', '-F', 'raw', '-u', path, '1M');
      const hostile = await readFile(path);
      const digest = createHash('sha256').update(hostile).digest('hex');
      const url = await serve((_request, response) => response.end(hostile));
      await expect(ensure({ type: 'http', url, sha256: digest })).rejects.toMatchObject({
        reason: 'ImageInvalid',
        message: expect.stringContaining('backing file') as string,
      });
      expect(await stored()).toEqual([]);
    });

    it('does not wait for a connection to a registry on the same server', async () => {
      const pulls = 32;
      const asked = Promise.withResolvers<void>();
      let requests = 0;
      const url = await serve((request, response) => {
        if (request.url === '/image') {
          response.end(content);
          return;
        }
        requests += 1;
        if (requests === pulls) {
          asked.resolve();
        }
      });
      const { host } = new URL(url);
      const own = await open(true, { registries: [{ host, plainHttp: true }] });
      const ending = new AbortController();
      const pulling = Array.from({ length: pulls }, async (_, index) => {
        const source: MachineImageSource = { type: 'registry', reference: `${host}/team/image-${index}:v1` };
        const waiting = { signal: ending.signal, onProgress: () => undefined, onWait: () => undefined };
        await own.ensure(source, { holder: `machine/${index}`, tenant: 'team', ...waiting });
      });
      await asked.promise;
      await expect(ensure({ type: 'http', url: `${url}/image`, sha256 }, own)).resolves.toBeDefined();
      ending.abort(new Error('deleted'));
      await Promise.allSettled(pulling);
    });

    it('404 is ImageNotFound', async () => {
      const url = await serve((_request, response) => response.writeHead(404).end());
      await expect(ensure({ type: 'http', url, sha256 })).rejects.toMatchObject({ reason: 'ImageNotFound' });
    });

    it('follows redirects up to a limit', async () => {
      const url = await serve((request, response) => {
        if (request.url === '/image') {
          response.end(content);
        } else {
          response.writeHead(302, { location: request.url === '/first' ? '/image' : '/loop' }).end();
        }
      });
      await expect(ensure({ type: 'http', url: `${url}/loop`, sha256 })).rejects.toMatchObject({
        reason: 'ImageFetchFailed',
      });
      await expect(ensure({ type: 'http', url: `${url}/first`, sha256 })).resolves.toBeDefined();
    });
  });
});
