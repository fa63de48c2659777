/** Removal of content from the cluster's image storage: real registries with and without deletes, and a folder. */
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Published, Publisher, type StoragePlace } from '../../agent/images/publisher.ts';
import { Registries } from '../../agent/images/oci/repository.ts';
import { Keyring } from '../../agent/images/oci/credentials.ts';
import type { StorageTarget } from '../../api/v1alpha1/task.ts';
import { startRegistry, type TestRegistry, testAuthority } from '../wires/registry.ts';
import { TokenServer } from '../wires/tokenserver.ts';
import { writeRawDisk } from '../fixtures/vmimages.ts';

const DISK_MEBIBYTES = 8;
const { signal } = new AbortController();

let folder: string;
let disk: string;
const clients: Registries[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-storage-'));
  disk = join(folder, 'disk.raw');
  await writeRawDisk(disk, DISK_MEBIBYTES);
});

afterAll(async () => {
  await Promise.all(clients.map((client) => client.close()));
  await rm(folder, { recursive: true, force: true });
});

interface Storage {
  registry?: TestRegistry;
  password?: string;
  storageFolder?: string;
  /** Further hosts with the registry's authority. */
  hosts?: string[];
}

/** Returns the publisher of a host with its own credentials for the storage. */
function publisher({ registry, password, storageFolder, hosts = [] }: Storage): StorageHost {
  const { host, caFile } = registry ?? { host: '', caFile: '' };
  const known = registry === undefined ? [] : [host, ...hosts];
  const registries = new Registries({
    registries: known.map((one) => ({ host: one, caFile })),
    allowLoopbackHttp: false,
  });
  clients.push(registries);
  const keyring = Keyring.parse(registry && password !== '' ? [registry.dockerConfigJson(password)] : []);
  const own = new Publisher({ registries, storageFolder });
  const placeOf = (target: StorageTarget): StoragePlace =>
    target.type === 'folder' ? target : { ...target, keyring };
  return {
    store: async (target, raw, options) => await own.store(placeOf(target), raw, options),
    remove: async (target, ending) => await own.remove(placeOf(target), ending),
  };
}

/** A host with a task that has the credentials. */
interface StorageHost {
  store: (target: StorageTarget, ...rest: Rest<Publisher['store']>) => Promise<Published>;
  remove: (target: StorageTarget, ...rest: Rest<Publisher['remove']>) => Promise<string | undefined>;
}

type Rest<T extends (...all: never[]) => unknown> = Parameters<T> extends [unknown, ...infer R] ? R : never;

async function store(host: StorageHost, target: StorageTarget): Promise<Published> {
  const raw = { path: disk, virtualSizeBytes: DISK_MEBIBYTES * 1024 ** 2, architecture: 'amd64' as const };
  return await host.store(target, raw, { signal, onProgress: () => undefined, mark: 'mark' });
}

function version(registry: TestRegistry, tag: string): StorageTarget {
  return { type: 'registry', reference: `${registry.host}/storage/platform-ci/golden:${tag}` };
}

function place({ reference = '' }: Published): StorageTarget {
  return { type: 'registry', reference };
}

async function has(registry: TestRegistry, { reference = '' }: Published): Promise<boolean> {
  try {
    await registry.skopeo('inspect', '--raw', `docker://${reference}`);
    return true;
  } catch (error) {
    if (/manifest unknown/.test(String(error))) {
      return false;
    }
    throw error;
  }
}

/** Returns how often the registry was asked to delete something. It first refuses a request without a password. */
async function deletions(registry: TestRegistry): Promise<number> {
  const requests = await registry.requests();
  return requests.filter(({ method, status }) => method === 'DELETE' && status !== 401).length;
}

describe('a registry that allows deletes', () => {
  let registry: TestRegistry;

  beforeAll(async () => {
    registry = await startRegistry({ directory: join(folder, 'allows') });
  });

  afterAll(async () => await registry.close());

  it('loses one version; another version of the same disk stays complete, and a second removal finds nothing', async () => {
    const host = publisher({ registry });
    const first = await store(host, version(registry, 'one'));
    const second = await store(host, version(registry, 'two'));
    expect(first.digest).not.toBe(second.digest);
    expect(await host.remove(place(first), signal)).toBeUndefined();
    expect(await has(registry, first)).toBe(false);
    expect(await has(registry, second)).toBe(true);
    await registry.skopeo('copy', `docker://${second.reference}`, `dir:${join(folder, 'copy')}`);
    expect(await host.remove(place(first), signal)).toBeUndefined();
  });

  it('is not changed by a host without valid credentials', async () => {
    const made = await store(publisher({ registry }), version(registry, 'closed'));
    const guessed = publisher({ registry, password: 'guessed' });
    await expect(guessed.remove(place(made), signal)).rejects.toMatchObject({ reason: 'ImageAccessDenied' });
    expect(await has(registry, made)).toBe(true);
  });

  it('takes nothing from a host without a task, which has no credentials to write or delete', async () => {
    const made = await store(publisher({ registry }), version(registry, 'pulled'));
    const idle = publisher({ registry, password: '' });
    await expect(store(idle, version(registry, 'foreign'))).rejects.toMatchObject({ reason: 'TaskFailed' });
    await expect(idle.remove(place(made), signal)).rejects.toMatchObject({ reason: 'ImageAccessDenied' });
    expect(await has(registry, made)).toBe(true);
  });

  it('is never asked to remove a tag, because the tag may have another version by now', async () => {
    const host = publisher({ registry });
    const made = await store(host, version(registry, 'tagged'));
    const before = await deletions(registry);
    const tagged = host.remove(version(registry, 'tagged'), signal);
    await expect(tagged).rejects.toMatchObject({ reason: 'ImageInvalid' });
    expect(await has(registry, made)).toBe(true);
    expect(await deletions(registry)).toBe(before);
  });
});

describe('a registry that allows no deletes', () => {
  let registry: TestRegistry;

  beforeAll(async () => {
    registry = await startRegistry({ directory: join(folder, 'keeps'), deletes: false });
  });

  afterAll(async () => await registry.close());

  it('reports it as a fault that is not tried again', async () => {
    const host = publisher({ registry });
    const made = await store(host, version(registry, 'one'));
    expect(await host.remove(place(made), signal)).toMatch(/storage\/platform-ci\/golden.*allow deletions/);
    expect(await has(registry, made)).toBe(true);
    expect(await deletions(registry)).toBe(1);
  });
});

describe('a registry with a token server', () => {
  it('is asked for the right to delete', async () => {
    const authority = await testAuthority();
    const tokens = await TokenServer.start(authority);
    const directory = join(folder, 'tokens');
    const registry = await startRegistry({ directory, authority, token: tokens.settings });
    try {
      const host = publisher({ registry, hosts: [tokens.host] });
      const made = await store(host, version(registry, 'one'));
      tokens.given.length = 0;
      expect(await host.remove(place(made), signal)).toBeUndefined();
      const asked = expect.objectContaining({ actions: ['pull', 'delete'] });
      expect(tokens.given.at(-1)).toContainEqual(asked);
      expect(await host.remove(place(made), signal)).toBeUndefined();
    } finally {
      await registry.close();
      await tokens.close();
    }
  });
});

describe('a folder', () => {
  it('belongs to the agent alone', async () => {
    const storageFolder = join(folder, 'closed');
    await mkdir(storageFolder, { mode: 0o755 });
    const host = publisher({ storageFolder });
    await store(host, { type: 'folder', path: 'platform-ci/one.qcow2' });
    const modeOf = async (path: string): Promise<number> =>
      (await stat(join(storageFolder, path))).mode & 0o777;
    expect([await modeOf('.'), await modeOf('platform-ci')]).toEqual([0o700, 0o700]);
    expect(await modeOf('platform-ci/one.qcow2')).toBe(0o400);
  });

  let storageFolder: string;

  beforeAll(async () => {
    storageFolder = join(folder, 'shared');
    await mkdir(storageFolder);
  });

  it('loses one file and its unfinished parts, and no other file', async () => {
    const host = publisher({ storageFolder });
    const [first, second] = ['platform-ci/one.qcow2', 'platform-ci/two.qcow2'] as const;
    for (const path of [first, second]) {
      await store(host, { type: 'folder', path });
    }
    await writeFile(join(storageFolder, `${first}.partial`), 'half');
    for (const _ of ['first', 'again']) {
      expect(await host.remove({ type: 'folder', path: first }, signal)).toBeUndefined();
    }
    const left = [first, `${first}.partial`, second].filter((path) => existsSync(join(storageFolder, path)));
    expect(left).toEqual([second]);
  });

  it('is never left by a path', async () => {
    await writeFile(join(folder, 'outside'), 'somebody else has it');
    const host = publisher({ storageFolder });
    for (const path of ['../outside', 'platform-ci/../../outside', '']) {
      const removed = host.remove({ type: 'folder', path }, signal);
      await expect(removed).rejects.toMatchObject({ reason: 'ImageInvalid' });
    }
    expect(existsSync(join(folder, 'outside'))).toBe(true);
  });

  it('that a host has not mounted cannot be changed by it', async () => {
    const removed = publisher({}).remove({ type: 'folder', path: 'platform-ci/one.qcow2' }, signal);
    await expect(removed).rejects.toMatchObject({ reason: 'TaskFailed' });
  });
});
