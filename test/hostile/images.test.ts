/** Tenants who want images that a host keeps for others. Registry and store are real, the web servers belong to the test. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, type TestContext } from 'vitest';
import { parse, stringify } from 'yaml';
import { REMEMBERED_MILLISECONDS } from '../../agent/images/oci/access.ts';
import type { HostImageStore } from '../../agent/images/store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { ensure, keyringOf, openStore } from '../worlds/imagestores.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { pushContainerDisk, writeRawDisk } from '../fixtures/vmimages.ts';
import { tried } from './support/attempts.ts';

const DISK_MEBIBYTES = 1;

let folder: string;
let registry: TestRegistry;
let data: string;
let store: HostImageStore;
let servers: Server[];
let now: number;
let reference: string;
/** The first configuration of the registry, which asks for a password. */
let configured: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-hostile-images-'));
  registry = await startRegistry({ directory: join(folder, 'registry') });
  const disk = join(folder, 'disk');
  await writeRawDisk(disk, DISK_MEBIBYTES);
  reference = await pushContainerDisk(registry, 'team/private:1', disk);
  configured = await readFile(join(folder, 'registry', 'config.yml'), 'utf8');
});

afterAll(async () => {
  await registry?.close();
  await rm(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  data = await mkdtemp(join(folder, 'data-'));
  now = 0;
  servers = [];
  store = await openAgain();
});

afterEach(async () => {
  for (const server of servers) {
    server.closeAllConnections();
    server.close();
  }
  await store.registries.close();
});

/** Opens the store again, like an agent after a restart. */
async function openAgain(): Promise<HostImageStore> {
  return await openStore(data, [registry], { clock: () => now });
}

/** Asks the store for an image. Returns the reason of a refusal or "an image", and counts it for the report. */
async function ask(
  context: TestContext,
  who: string,
  source: MachineImageSource | string,
  options: Parameters<typeof ensure>[3] = {},
): Promise<string> {
  let outcome = 'an image';
  try {
    await ensure(store, source, `machine/${who}`, options);
  } catch (error) {
    outcome = error instanceof Error && 'reason' in error ? String(error.reason) : String(error);
  }
  tried(context, who, outcome);
  return outcome;
}

describe('a private image on a host', () => {
  const wrong = (): { keyring: ReturnType<typeof keyringOf> } => ({ keyring: keyringOf(registry, 'wrong') });
  const right = (): { keyring: ReturnType<typeof keyringOf> } => ({ keyring: keyringOf(registry) });

  /** Changes who can read from the registry: users with the password, everybody, or nobody. */
  async function configure(access: 'password' | 'everybody' | 'nobody'): Promise<void> {
    const directory = join(folder, 'registry');
    const { auth, ...rest } = parse(configured) as { auth: { htpasswd: { path: string } } };
    const config = access === 'everybody' ? rest : { ...rest, auth };
    await writeFile(join(directory, 'config.yml'), stringify(config));
    const htpasswd = join(directory, 'htpasswd');
    const known = (await readFile(htpasswd, 'utf8')).replaceAll('#', '');
    await writeFile(htpasswd, access === 'nobody' ? `#${known}` : known);
    await registry.restart();
  }

  afterEach(async () => await configure('password'));

  it('is refused to users without a secret or with a wrong one, also after a restart of the agent', async (context) => {
    await ensure(store, reference, 'machine/owner', right());
    for (const life of ['the same agent', 'a restarted agent']) {
      expect(await ask(context, `no secret, ${life}`, reference)).toBe('ImageAccessDenied');
      expect(await ask(context, `a wrong secret, ${life}`, reference, wrong())).toBe('ImageAccessDenied');
      await store.registries.close();
      store = await openAgain();
    }
    expect(await ask(context, 'the right secret', reference, right())).toBe('an image');
  });

  it('stays open for some minutes after its secret was withdrawn, and not longer', async (context) => {
    await ensure(store, reference, 'machine/owner', right());
    await configure('nobody');
    now = REMEMBERED_MILLISECONDS - 1;
    expect(await ask(context, 'a secret withdrawn lately', reference, right())).toBe('an image');
    now = REMEMBERED_MILLISECONDS;
    expect(await ask(context, 'a secret withdrawn', reference, right())).toBe('ImageAccessDenied');
    await store.registries.close();
    store = await openAgain();
    expect(await ask(context, 'a secret withdrawn, a restarted agent', reference, right())).toBe(
      'ImageAccessDenied',
    );
  });

  it('stays open for some minutes after it was made private, and not longer', async (context) => {
    await configure('everybody');
    await ensure(store, reference, 'machine/owner');
    await configure('password');
    now = REMEMBERED_MILLISECONDS - 1;
    expect(await ask(context, 'no secret, closed lately', reference)).toBe('an image');
    now = REMEMBERED_MILLISECONDS;
    expect(await ask(context, 'no secret, closed', reference)).toBe('ImageAccessDenied');
    expect(await ask(context, 'a wrong secret, closed', reference, wrong())).toBe('ImageAccessDenied');
    expect(await ask(context, 'the right secret, closed', reference, right())).toBe('an image');
    await store.registries.close();
    store = await openAgain();
    expect(await ask(context, 'no secret, closed, a restarted agent', reference)).toBe('ImageAccessDenied');
  });

  it('is given to everybody while its registry is away, if the registry allowed that when last asked', async (context) => {
    await configure('everybody');
    await ensure(store, reference, 'machine/owner');
    now = REMEMBERED_MILLISECONDS;
    await registry.stop();
    expect(await ask(context, 'no secret, open and away', reference)).toBe('an image');
    await configure('password');
    now = 2 * REMEMBERED_MILLISECONDS;
    const denied = { reason: 'ImageAccessDenied' };
    await expect(ensure(store, reference, 'machine/late')).rejects.toMatchObject(denied);
    await registry.stop();
    await expect(ensure(store, reference, 'machine/later')).rejects.toMatchObject({ name: 'ReasonedError' });
  });
});

describe('a file of a web server on a host', () => {
  const content = Buffer.alloc(1024 ** 2, 7);
  const sha256 = createHash('sha256').update(content).digest('hex');

  async function serve(listener: RequestListener): Promise<{ url: string; requests: () => number }> {
    let count = 0;
    const server = createServer((request, response) => {
      count += 1;
      listener(request, response);
    }).listen(0, '127.0.0.1');
    servers.push(server);
    await once(server, 'listening');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/disk.raw`;
    return { url, requests: () => count };
  }

  const from = (url: string): MachineImageSource => ({ type: 'http', url, sha256 });

  it('is not given by its digest to a user who names another address', async (context) => {
    const owner = await serve((_request, response) => response.end(content));
    const { path } = await ensure(store, from(owner.url), 'machine/owner');
    const addresses: Record<string, [RequestListener, string]> = {
      'an address without it': [(_request, response) => response.writeHead(404).end(), 'ImageNotFound'],
      'an address that refuses': [(_request, response) => response.writeHead(403).end(), 'ImageFetchFailed'],
      'an address with something else': [(_request, response) => response.end('else'), 'DigestMismatch'],
      'an address with a part of it': [
        (_request, response) => response.end(content.subarray(0, 1000)),
        'DigestMismatch',
      ],
    };
    for (const [who, [listener, expected]] of Object.entries(addresses)) {
      const { url } = await serve(listener);
      expect.soft(await ask(context, who, from(url)), who).toBe(expected);
    }
    const other = await serve((_request, response) => response.end(content));
    expect((await ensure(store, from(other.url), 'machine/other')).path).toBe(path);
    expect(other.requests()).toBe(1);
    // Both addresses have served the file, and a later agent knows that too.
    store = await openAgain();
    for (const { url } of [owner, other]) {
      expect(await ask(context, 'an address that gave it', from(url))).toBe('an image');
    }
    expect([owner.requests(), other.requests()]).toEqual([1, 1]);
  });
});
