import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { link, mkdir, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join, relative } from 'node:path';
import { setImmediate as immediate } from 'node:timers/promises';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { classOf, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { sync } from '../../base/files.ts';
import type { BaseImage, MemoryFiles } from '../disks/disk.ts';
import { allocatedBytes } from '../disks/diskio.ts';
import { markArgument } from '../disks/qemuimg.ts';
import { Keyring } from './oci/credentials.ts';
import { Registries } from './oci/repository.ts';
import { type Published, Publisher } from './publisher.ts';
import { HostImageStore } from './store.ts';
import { makeFolder } from '../../test/support/folder.ts';

vi.mock(import('../../base/files.ts'), { spy: true });

const DISK_BYTES = 1024 * 1024;
const PATH = 'team/disk.qcow2';

describe('a disk in the folder of the image storage', () => {
  let root: string;
  let storageFolder: string;
  let registries: Registries;

  beforeEach(async () => {
    root = makeFolder();
    storageFolder = join(root, 'storage');
    await mkdir(storageFolder);
    await writeFile(join(root, 'disk.raw'), Buffer.alloc(DISK_BYTES, 1));
    registries = new Registries({ registries: [], allowLoopbackHttp: false });
  });

  afterEach(async () => {
    vi.useRealTimers();
    vi.unstubAllEnvs();
    vi.resetAllMocks();
    await registries.close();
  });

  function publisher(): Publisher {
    return new Publisher({ registries, storageFolder });
  }

  async function store(memory?: MemoryFiles): Promise<Published> {
    const disk = {
      memory,
      path: join(root, 'disk.raw'),
      virtualSizeBytes: DISK_BYTES,
      architecture: undefined,
    };
    const options = { signal: new AbortController().signal, onProgress: () => undefined, mark: 'mark' };
    return await publisher().store({ type: 'folder', path: PATH }, disk, options);
  }

  it('is tried again if a host has no such folder, because the Image has no fault', async () => {
    const without = new Publisher({
      registries,
      storageFolder: undefined,
    });
    const disk = { path: join(root, 'disk.raw'), virtualSizeBytes: DISK_BYTES, architecture: undefined };
    const options = { signal: new AbortController().signal, onProgress: () => undefined, mark: 'mark' };
    const error = await without.store({ type: 'folder', path: PATH }, disk, options).catch(reasonIn);
    expect(error).toBe('TaskFailed');
    expect(classOf('TaskFailed', 'Image')).toBe('passing');
  });

  it('is not stored if it has a machine beside it, because the folder would lose the machine', async () => {
    const machine = { config: join(root, 'config.json'), variables: join(root, 'nvram.bin') };
    const disk = { path: join(root, 'disk.raw'), virtualSizeBytes: DISK_BYTES, machine };
    const options = { signal: new AbortController().signal, onProgress: () => undefined, mark: 'mark' };
    const stored = publisher().store({ type: 'folder', path: PATH }, disk, options);
    await expect(stored).rejects.toMatchObject({ reason: 'TaskFailed' });
    expect(await readdir(storageFolder)).toEqual([]);
  });

  it('is not stored if the folder is missing, because the agent of a Pod without the mount would lose it', async () => {
    await rm(storageFolder, { recursive: true });
    await expect(store()).rejects.toThrow(
      'This host does not have the folder of images.storageFolder: mount or create it',
    );
    expect(existsSync(storageFolder)).toBe(false);
  });

  it('is on the disk before it gets its name, and its name before the result', async () => {
    const synced: string[] = [];
    vi.mocked(sync).mockImplementation(async (path) => {
      // A store that does not wait for this call goes on meanwhile.
      for (let index = 0; index < 100; index += 1) {
        await immediate();
      }
      const when = existsSync(join(storageFolder, PATH)) ? 'named' : 'unnamed';
      synced.push(`${relative(root, path)}, ${when}`);
    });
    await store();
    expect(synced).toEqual([`storage/${PATH}.partial, unnamed`, 'storage/team, named', 'storage, named']);
  });

  describe('with memory', () => {
    const about = { cpu: 2, memoryBytes: DISK_BYTES, key: 'b'.repeat(64), savedAt: '2026-11-30T06:00:00Z' };

    /** Returns memory with a hole and data. */
    async function givenMemory(): Promise<MemoryFiles> {
      const memory = { ...about, ram: join(root, 'ram'), state: join(root, 'state') };
      await writeFile(
        memory.ram,
        Buffer.concat([Buffer.alloc(DISK_BYTES / 2), Buffer.alloc(DISK_BYTES / 2, 7)]),
      );
      await writeFile(memory.state, 'state');
      return memory;
    }

    async function fetch({ digest, memoryDigest }: Published): Promise<BaseImage> {
      const images = await HostImageStore.open({
        dataDirectory: join(root, 'data'),
        sharedRoots: [],
        storageFolder,
        architecture: 'amd64',
        allowLoopbackHttp: false,
        registries: [],
        minimumFree: 0,
        metrics: new Registry(),
        logger: pino({ level: 'silent' }),
      });
      const sha256 = digest.replace('sha256:', '');
      const source = {
        type: 'storedFile',
        path: PATH,
        sha256,
        ...(memoryDigest && { memoryDigest }),
      } as const;
      const { signal } = new AbortController();
      const asked = { tenant: 'team', onProgress: () => undefined, onWait: () => undefined, signal };
      return await images.ensure(source, { ...asked, holder: 'machine/a' });
    }

    it('has its memory beside it, which a host fetches with its holes', async () => {
      const memory = await givenMemory();
      const published = await store(memory);
      const names = ['disk.qcow2', 'disk.qcow2.memory.json', 'disk.qcow2.ram', 'disk.qcow2.state'];
      expect((await readdir(join(storageFolder, 'team'))).toSorted()).toEqual(names);
      const fetched = (await fetch(published)).memory!;
      expect(fetched).toMatchObject(about);
      expect((await readFile(fetched.ram)).equals(await readFile(memory.ram))).toBe(true);
      expect(await readFile(fetched.state, 'utf8')).toBe('state');
      expect(await allocatedBytes(fetched.ram)).toBe(DISK_BYTES / 2);
      const { memoryDigest: _, ...diskAlone } = published;
      expect((await fetch(diskAlone)).memory).toBeUndefined();
      await publisher().remove({ type: 'folder', path: PATH }, new AbortController().signal);
      expect(await readdir(join(storageFolder, 'team'))).toEqual([]);
    });

    it.each(['memory.json', 'ram', 'state'])('is refused if somebody changed its file %s', async (name) => {
      const published = await store(await givenMemory());
      const path = join(storageFolder, `${PATH}.${name}`);
      const content = await readFile(path);
      content.writeUInt8(content.readUInt8(content.length - 1) ^ 1, content.length - 1);
      await rm(path);
      await writeFile(path, content);
      await expect(fetch(published)).rejects.toMatchObject({ reason: 'DigestMismatch' });
    });

    it('leaves no file if its memory does not have the stated size, or the disk cannot be stored', async () => {
      const memory = await givenMemory();
      await rm(join(root, 'disk.raw'));
      await expect(store(memory)).rejects.toThrow('disk.raw');
      await truncate(memory.ram, DISK_BYTES - 1);
      await expect(store(memory)).rejects.toMatchObject({ reason: 'ImageInvalid' });
      expect(await readdir(join(storageFolder, 'team'))).toEqual([]);
    });
  });

  it('is removed for good before the result', async () => {
    await store();
    const left: Record<string, string[]> = {};
    vi.mocked(sync).mockImplementation(async (path) => {
      left[relative(root, path)] = await readdir(path);
    });
    const { signal } = new AbortController();
    await publisher().remove({ type: 'folder', path: PATH }, signal);
    expect(left).toEqual({ 'storage/team': [] });
    await expect(
      publisher().remove({ type: 'folder', path: 'none/disk.qcow2' }, signal),
    ).resolves.toBeUndefined();
  });

  it('is converted by a process that the agent finds after a restart', async () => {
    const seen = join(root, 'arguments');
    const program = `#!/bin/sh\nprintf '%s\\n' "$@" > '${seen}'\nPATH='${process.env['PATH']}' exec qemu-img "$@"\n`;
    await writeFile(join(root, 'qemu-img'), program, { mode: 0o755 });
    vi.stubEnv('PATH', `${root}:${process.env['PATH']}`);
    await store();
    expect((await readFile(seen, 'utf8')).split('\n')).toContain(markArgument('mark'));
  });

  it('has its progress reported while it is written', async () => {
    const percents: number[] = [];
    const options = {
      signal: new AbortController().signal,
      onProgress: (percent: number) => percents.push(percent),
      mark: 'mark',
    };
    const disk = { path: join(root, 'disk.raw'), virtualSizeBytes: DISK_BYTES, architecture: undefined };
    await publisher().store({ type: 'folder', path: PATH }, disk, options);
    expect(percents.at(-1)).toBe(100);
  });

  it.each([
    ['stored', store],
    [
      'removed',
      async () => await publisher().remove({ type: 'folder', path: PATH }, new AbortController().signal),
    ],
    ['protected', async () => await publisher().protectFolder()],
  ])('is not %s while the file server of the folder does not answer', async (_, work) => {
    await writeFile(join(root, 'stat'), '#!/bin/sh\nexec sleep 600\n', { mode: 0o755 });
    vi.stubEnv('PATH', `${root}:${process.env['PATH']}`);
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const asked = work();
    asked.catch(() => undefined);
    await vi.advanceTimersByTimeAsync(120_000);
    await expect(asked).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
  });

  it('is not written to a file that an earlier agent left', async () => {
    const left = join(root, 'left');
    await writeFile(left, 'half');
    await mkdir(join(storageFolder, 'team'));
    await link(left, join(storageFolder, `${PATH}.partial`));
    await store();
    expect(await readFile(left, 'utf8')).toBe('half');
    expect(await readdir(join(storageFolder, 'team'))).toEqual(['disk.qcow2']);
  });
});

describe('a disk for a registry', () => {
  let folder: string;
  let server: Server;
  let registries: Registries;
  /** Answer of the registry to each request: the method, the status, and the code of the error. */
  let answer: { method: string; status: number; code: string };
  let reference: string;

  beforeEach(async () => {
    folder = makeFolder();
    await writeFile(join(folder, 'disk.raw'), Buffer.alloc(DISK_BYTES, 1));
    server = createServer((request, response) => {
      request.resume();
      if (request.method === answer.method) {
        response.writeHead(answer.status).end(JSON.stringify({ errors: [{ code: answer.code }] }));
      } else if (request.method === 'POST') {
        response.writeHead(202, { location: '/upload' }).end();
      } else {
        response.writeHead(404).end();
      }
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    reference = `${host}/storage/team/disk:1`;
    registries = new Registries({ registries: [{ host, plainHttp: true }], allowLoopbackHttp: true });
  });

  afterEach(async () => {
    await registries.close();
    server.closeAllConnections();
    server.close();
  });

  function publisher(): Publisher {
    return new Publisher({ registries, storageFolder: undefined });
  }

  const options = { signal: new AbortController().signal, onProgress: () => undefined, mark: 'mark' };

  it.each([
    ['does not take a chunk', 'PUT', 400, 'DIGEST_INVALID', 'PushFailed', 'did not take the image'],
    ['does not accept its credentials', 'HEAD', 401, 'UNAUTHORIZED', 'ImageAccessDenied', 'the push needs'],
    ['has no such repository', 'POST', 404, 'NAME_UNKNOWN', 'PushFailed', 'did not take the image'],
  ])(
    'is stored again later if the image storage %s, because the Image has no fault',
    async (_, method, status, code, ...[reason, said]) => {
      answer = { method, status, code };
      const disk = { path: join(folder, 'disk.raw'), virtualSizeBytes: DISK_BYTES, architecture: undefined };
      const stored = publisher().store(
        { type: 'registry', reference, keyring: Keyring.parse([]) },
        disk,
        options,
      );
      await expect(stored).rejects.toMatchObject({
        reason: 'TaskFailed',
        message: expect.stringMatching(`image storage.*answered ${status}`) as string,
      });
      expect(classOf('TaskFailed', 'Image')).toBe('passing');
      // The user who pushes a disk has named this registry, so the reason can be the user's mistake. It blames no fetch.
      const push = publisher().push({ reference, keyring: Keyring.parse([]) }, disk, options);
      await expect(push).rejects.toMatchObject({
        reason,
        message: expect.stringMatching(`^(?!.*imagePullSecrets).*${said}`) as string,
      });
    },
  );
});
