/** Registries without TLS, or with a certificate of an unknown authority, that a namespace allows for its own Pods. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { publishDisk } from '../../agent/images/layouts/publish.ts';
import { Keyring } from '../../agent/images/oci/credentials.ts';
import { Registries } from '../../agent/images/oci/repository.ts';
import { ask } from '../../agent/images/oci/access.ts';
import type { HostImageStore } from '../../agent/images/store.ts';
import { parseReference } from '../../api/v1alpha1/reference.ts';
import { writeRawDisk } from '../fixtures/vmimages.ts';
import { serverCertificate, startRegistry, testAuthority, type TestRegistry } from '../wires/registry.ts';
import { ensure, keyringOf, openStore } from '../worlds/imagestores.ts';

const DISK_MEBIBYTES = 4;
const { signal } = new AbortController();

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-insecure-'));
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

async function hashOf(path: string): Promise<string> {
  return createHash('sha256')
    .update(await readFile(path))
    .digest('hex');
}

describe.each([
  { scheme: 'https', password: true },
  { scheme: 'http', password: true },
  { scheme: 'https', password: false },
] as const)('a registry with $scheme that proves nothing, password: $password', ({ scheme, password }) => {
  let registry: TestRegistry;
  let reference: string;
  let digest: string;
  let disk: string;
  let data: string;
  let store: HostImageStore;

  beforeAll(async () => {
    const directory = await mkdtemp(join(folder, 'registry-'));
    registry = await startRegistry({ directory, tls: scheme === 'https', password });
    disk = join(directory, 'disk');
    await writeRawDisk(disk, DISK_MEBIBYTES);
    reference = `${registry.host}/team/base:1`;
    digest = await publish();
  });

  afterAll(async () => await registry?.close());

  beforeEach(async () => {
    data = await mkdtemp(join(folder, 'data-'));
    // The host knows neither the registry nor its authority.
    store = await openStore(data, []);
  });

  function marked(namespace: string): Keyring {
    const servers = [{ scheme, registry: registry.host }];
    return Keyring.parse(password ? [registry.dockerConfigJson()] : [], { namespace, servers });
  }

  async function publish(): Promise<string> {
    const registries = new Registries({ registries: [], allowLoopbackHttp: true });
    try {
      const where = { reference: parseReference(reference), keyring: marked('platform-a') };
      const { answer } = await ask(registries, where, async (repository) => {
        const architecture = 'amd64' as const;
        const bytes = { path: disk, virtualSizeBytes: DISK_MEBIBYTES * 1024 ** 2, architecture };
        return await publishDisk({ repository, tag: '1', ...bytes }, { signal, onBytes: () => undefined });
      });
      return answer.digest;
    } finally {
      await registries.close();
    }
  }

  it('serves the namespace that allows it, also after a restart', async () => {
    const keyring = marked('platform-a');
    const first = await ensure(store, reference, 'machine/a', { keyring, name: 'berth.dev/platform-a/base' });
    expect(await hashOf(first.path)).toBe(await hashOf(disk));
    const reopened = await openStore(data, []);
    expect(await ensure(reopened, reference, 'machine/b', { keyring: marked('platform-a') })).toEqual(first);
    // No name that tells another namespace whose image it is.
    const names = reopened.images().flatMap((image) => image.names);
    expect(names).toEqual([`berth.dev/image@${first.digest}`]);
  });

  it('serves its content to no other reader of the store', async () => {
    const { path } = await ensure(store, reference, 'machine/a', { keyring: marked('platform-a') });
    const keyring = keyringOf(registry);
    const pinned = `${registry.host}/team/base@${digest}`;
    for (const name of [reference, pinned]) {
      const other = ensure(store, name, 'machine/b', { keyring });
      await expect(other).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
      const nobody = ensure(store, name, 'machine/c');
      await expect(nobody).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    }
    const hidden = ensure(store, `insecure!platform-a/${reference}`, 'machine/d', { keyring });
    await expect(hidden).rejects.toMatchObject({ reason: 'ImageSourceUnsupported' });
    const second = await ensure(store, reference, 'machine/e', { keyring: marked('platform-b') });
    expect(second.path).not.toBe(path);
    // A host that knows the registry fetches the same image once more for everybody else.
    const { host, caFile } = registry;
    const knowing = await openStore(data, [], {
      registries: [{ host, caFile, plainHttp: scheme === 'http' }],
    });
    const third = await ensure(knowing, reference, 'machine/f', { keyring });
    expect([path, second.path]).not.toContain(third.path);
    expect(third.digest).toBe(digest);
  });
});

it('an insecure registry that leads elsewhere does not make the other server trusted', async () => {
  const pair = await serverCertificate(await testAuthority());
  const asked: string[] = [];
  const other = createServer(pair, (request, response) => {
    asked.push(request.url ?? '');
    response.end();
  });
  const registry = createServer(pair, (_request, response) => {
    const { port } = other.address() as AddressInfo;
    response.writeHead(307, { location: `https://127.0.0.1:${port}/stolen` }).end();
  });
  const registries = new Registries({ registries: [], allowLoopbackHttp: true });
  try {
    for (const server of [other, registry]) {
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
    }
    const host = `127.0.0.1:${(registry.address() as AddressInfo).port}`;
    const route = { scheme: 'https', namespace: 'platform-a' } as const;
    const repository = registries.repository({ registry: host, repository: 'team/base' }, undefined, route);
    await expect(repository.head('1', signal)).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    expect(asked).toEqual([]);
  } finally {
    await registries.close();
    other.close();
    registry.close();
  }
});
