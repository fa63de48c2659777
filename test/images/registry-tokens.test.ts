/** Registries that send callers to a token server. The registry is real and verifies the tokens. */
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { Registries, type Repository } from '../../agent/images/oci/repository.ts';
import { type Credential, Keyring } from '../../agent/images/oci/credentials.ts';
import type { Descriptor } from '../../agent/images/oci/manifests.ts';
import { startRegistry, type TestRegistry, testAuthority } from '../wires/registry.ts';
import { TokenServer } from '../wires/tokenserver.ts';

const BLOB_BYTES = 4 * 1024 ** 2;
const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const { signal } = new AbortController();

describe('a registry with a token server', () => {
  let folder: string;
  let registry: TestRegistry;
  let tokens: TokenServer;
  let client: Registries;
  let blob: Descriptor;
  const content = randomBytes(BLOB_BYTES);

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-tokens-'));
    const authority = await testAuthority();
    tokens = await TokenServer.start(authority);
    registry = await startRegistry({ directory: folder, authority, token: tokens.settings });
    open();
    for (const name of ['public/image', 'private/image']) {
      blob = await fill(to(name, password()));
    }
    await client.close();
  });

  afterAll(async () => {
    await registry.close();
    await tokens.close();
    await rm(folder, { recursive: true, force: true });
  });

  beforeEach(() => {
    open();
    tokens.given.length = 0;
    tokens.seconds = 300;
    tokens.givesExpired = false;
  });

  afterEach(async () => await client.close());

  function open(): void {
    const { caFile } = registry;
    const hosts = [registry.host, tokens.host];
    client = new Registries({
      registries: hosts.map((host) => ({ host, caFile })),
      allowLoopbackHttp: false,
    });
  }

  function password(text?: string): Credential | undefined {
    return Keyring.parse([registry.dockerConfigJson(text)]).candidates(registry.host, 'any')[0];
  }

  function to(name: string, credential?: Credential): Repository {
    return client.repository({ registry: registry.host, repository: name }, credential);
  }

  async function fill(repository: Repository): Promise<Descriptor> {
    const config = await put(repository, Buffer.from('{}'));
    const layer = await put(repository, content);
    const manifest = { schemaVersion: 2, mediaType: OCI_MANIFEST, config, layers: [layer] };
    await repository.putManifest('v1', OCI_MANIFEST, Buffer.from(JSON.stringify(manifest)), signal);
    return layer;
  }

  async function put(repository: Repository, bytes: Buffer): Promise<Descriptor> {
    const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
    await repository.upload({ digest, size: bytes.length, content: () => bytes }, signal);
    return { mediaType: 'application/octet-stream', digest, size: bytes.length };
  }

  it('opens public images to everybody', async () => {
    const repository = to('public/image');
    const { manifest } = await repository.resolve('v1', 'amd64', signal);
    expect(manifest.layers).toEqual([blob]);
    expect((await repository.blob(blob, BLOB_BYTES, signal)).equals(content)).toBe(true);
    expect(tokens.given).toEqual([[{ type: 'repository', name: 'public/image', actions: ['pull'] }]]);
  });

  it('opens private images only to its user', async () => {
    await expect(to('private/image').resolve('v1', 'amd64', signal)).rejects.toMatchObject({
      reason: 'ImageAccessDenied',
      message: expect.stringContaining('imagePullSecrets') as string,
    });
    await expect(to('private/image', password()).head('v1', signal)).resolves.toMatch(/^sha256:/);
    await expect(to('private/image', password('wrong')).head('v1', signal)).rejects.toMatchObject({
      reason: 'ImageAccessDenied',
      message: expect.stringContaining('incorrect username or password') as string,
    });
  });

  it('gives tokens for an identity token', async () => {
    const keyring = Keyring.parse([tokens.identityTokenConfig(registry.host)]);
    const [credential] = keyring.candidates(registry.host, 'private/image');
    await expect(to('private/image', credential).head('v1', signal)).resolves.toMatch(/^sha256:/);
  });

  it('is asked once by many callers with the same need', async () => {
    const repository = to('private/image', password());
    const parts = Array.from({ length: 8 }, (_, index) => ({
      start: index * 1000,
      end: index * 1000 + 1000,
    }));
    await Promise.all(parts.map(async (part) => await buffer(repository.stream(blob, part, signal))));
    expect(tokens.given).toHaveLength(1);
  });

  it('is asked again when a token is about to expire', async () => {
    const repository = to('private/image', password());
    const now = performance.now.bind(performance);
    const clock = vi.spyOn(performance, 'now');
    onTestFinished(() => clock.mockRestore());
    // The token is valid for 300 s, and is used for 270 s.
    for (const [seconds, given] of [
      [0, 1],
      [250, 1],
      [285, 2],
    ] as const) {
      clock.mockImplementation(() => now() + seconds * 1000);
      await buffer(repository.stream(blob, { start: 0, end: 1000 }, signal));
      expect(tokens.given).toHaveLength(given);
    }
  });

  it('renews a token that the registry no longer accepts, once', async () => {
    const repository = to('private/image', password());
    tokens.givesExpired = true;
    await expect(repository.head('v1', signal)).rejects.toMatchObject({ reason: 'ImageAccessDenied' });
    expect(tokens.given).toHaveLength(1);
    // The client still has the expired token.
    tokens.givesExpired = false;
    expect((await repository.blob(blob, BLOB_BYTES, signal)).equals(content)).toBe(true);
    expect(tokens.given).toHaveLength(2);
  });
});
