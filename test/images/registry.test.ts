/** The client of registries against a real registry, to which skopeo copies images. */
import { createHash, randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Registries, type Repository } from '../../agent/images/oci/repository.ts';
import { Keyring } from '../../agent/images/oci/credentials.ts';
import { parseReference } from '../../api/v1alpha1/reference.ts';
import type { Descriptor } from '../../agent/images/oci/manifests.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { waitFor } from '../../hack/wait.ts';

const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const OCI_INDEX = 'application/vnd.oci.image.index.v1+json';
const OCI_CONFIG = 'application/vnd.oci.image.config.v1+json';
const BLOB_BYTES = 8 * 1024 ** 2;
const MEBIBYTE = 1024 ** 2;

let folder: string;
let registry: TestRegistry;
let client: Registries;
const layer = randomBytes(BLOB_BYTES);
const { signal } = new AbortController();

/** A layout with one image for each of two architectures, and an attestation, as builders publish them. */
async function writeLayout(directory: string): Promise<Record<string, string>> {
  await mkdir(join(directory, 'blobs', 'sha256'), { recursive: true });
  const put = async (content: Buffer, mediaType: string): Promise<Descriptor> => {
    const hex = createHash('sha256').update(content).digest('hex');
    await writeFile(join(directory, 'blobs', 'sha256', hex), content);
    return { mediaType, digest: `sha256:${hex}`, size: content.length };
  };
  const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
  const image = async (os: string, architecture: string): Promise<Descriptor & { platform: unknown }> => {
    const content = Buffer.concat([layer, Buffer.from(architecture)]);
    const layers = [await put(content, 'application/vnd.oci.image.layer.v1.tar')];
    const config = await put(
      json({ architecture, os, rootfs: { type: 'layers', diff_ids: [layers[0]?.digest] } }),
      OCI_CONFIG,
    );
    const manifest = json({ schemaVersion: 2, mediaType: OCI_MANIFEST, config, layers });
    return { ...(await put(manifest, OCI_MANIFEST)), platform: { os, architecture } };
  };
  const manifests = [
    await image('unknown', 'unknown'),
    await image('linux', 'amd64'),
    await image('linux', 'arm64'),
  ];
  const index = await put(json({ schemaVersion: 2, mediaType: OCI_INDEX, manifests }), OCI_INDEX);
  await writeFile(join(directory, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}');
  await writeFile(
    join(directory, 'index.json'),
    json({
      schemaVersion: 2,
      manifests: [{ ...index, annotations: { 'org.opencontainers.image.ref.name': 'both' } }],
    }),
  );
  const [, amd64, arm64] = manifests;
  return { index: index.digest, amd64: amd64?.digest ?? '', arm64: arm64?.digest ?? '' };
}

function open(name: string, from = client, password?: string): Repository {
  const reference = parseReference(`${registry.host}/${name}`);
  const keyring = Keyring.parse([registry.dockerConfigJson(password)]);
  return from.repository(reference, keyring.candidates(reference.registry, reference.repository)[0]);
}

async function firstLayer(repository: Repository, tag = 'both'): Promise<Descriptor> {
  const { manifest } = await repository.resolve(tag, 'amd64', signal);
  const [first] = manifest.layers;
  if (first === undefined) {
    throw new Error('no layer');
  }
  return first;
}

async function put(repository: Repository, content: Buffer): Promise<Descriptor> {
  const digest = `sha256:${createHash('sha256').update(content).digest('hex')}`;
  await repository.upload({ digest, size: content.length, content: () => content }, signal);
  return { mediaType: 'application/octet-stream', digest, size: content.length };
}

/** Returns the file in which the registry keeps a blob. */
function fileOf({ digest }: Descriptor): string {
  const hex = digest.slice('sha256:'.length);
  const blobs = join(registry.directory, 'data/docker/registry/v2/blobs/sha256');
  return join(blobs, hex.slice(0, 2), hex, 'data');
}

describe('a registry with TLS and a password', () => {
  let digests: Record<string, string>;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-registry-'));
    registry = await startRegistry({ directory: join(folder, 'registry') });
    digests = await writeLayout(join(folder, 'layout'));
    const to = `docker://${registry.host}/team/image:both`;
    await registry.skopeo('copy', '--all', '--preserve-digests', `oci:${join(folder, 'layout')}:both`, to);
  });

  afterAll(async () => {
    await registry.close();
    await rm(folder, { recursive: true, force: true });
  });

  beforeEach(() => {
    client = new Registries({
      registries: [{ host: registry.host, caFile: registry.caFile }],
      allowLoopbackHttp: false,
    });
  });

  afterEach(async () => await client.close());

  it.each(['amd64', 'arm64'] as const)('an index leads to the image for %s', async (architecture) => {
    const resolved = await open('team/image').resolve('both', architecture, signal);
    expect(resolved).toMatchObject({
      digest: digests[architecture],
      tagDigest: digests['index'],
      manifest: { mediaType: OCI_MANIFEST, layers: [{ size: BLOB_BYTES + architecture.length }] },
    });
  });

  it('a digest names an index or one image', async () => {
    const { index = '', arm64 = '' } = digests;
    await expect(open('team/image').resolve(index, 'arm64', signal)).resolves.toMatchObject({
      digest: arm64,
    });
    await expect(open('team/image').resolve(arm64, 'amd64', signal)).resolves.toMatchObject({
      digest: arm64,
      tagDigest: arm64,
    });
  });

  it('the digest of a tag needs one HEAD request', async () => {
    const before = await registry.requests();
    await expect(open('team/image').head('both', signal)).resolves.toBe(digests['index']);
    // An earlier HEAD is refused, because the registry has to ask for the password.
    expect((await registry.requests()).slice(before.length)).toEqual([
      { method: 'HEAD', path: '/v2/team/image/manifests/both', status: 401 },
      { method: 'HEAD', path: '/v2/team/image/manifests/both', status: 200 },
    ]);
  });

  it('a wrong password is ImageAccessDenied, and the message does not contain it', async () => {
    const wrong = open('team/image', client, 'not-the-password');
    const error: unknown = await wrong.resolve('both', 'amd64', signal).catch((reason: unknown) => reason);
    expect(error).toMatchObject({
      reason: 'ImageAccessDenied',
      message: expect.stringMatching(/team\/image:both.*401.*UNAUTHORIZED.*credentials/) as string,
    });
    expect(String(error)).not.toContain('not-the-password');
  });

  it('without credentials it is ImageAccessDenied, with a hint', async () => {
    const anonymous = client.repository({ registry: registry.host, repository: 'team/image' }, undefined);
    await expect(anonymous.head('both', signal)).rejects.toMatchObject({
      reason: 'ImageAccessDenied',
      message: expect.stringContaining('imagePullSecrets') as string,
    });
  });

  it.each(['none', `sha256:${'0'.repeat(64)}`])('%s is ImageNotFound', async (reference) => {
    await expect(open('team/image').resolve(reference, 'amd64', signal)).rejects.toMatchObject({
      reason: 'ImageNotFound',
      message: expect.stringMatching(/team\/image.*MANIFEST_UNKNOWN/) as string,
    });
    await expect(open('team/image').head(reference, signal)).rejects.toMatchObject({
      reason: 'ImageNotFound',
    });
  });

  it('a certificate of an authority that is not configured is not trusted', async () => {
    const other = new Registries({ registries: [{ host: registry.host }], allowLoopbackHttp: false });
    await expect(open('team/image', other).head('both', signal)).rejects.toMatchObject({
      reason: 'ImageFetchFailed',
      message: expect.stringContaining('does not trust the certificate') as string,
    });
    await other.close();
  });

  it('an address of the host is refused unless its registry is configured', async () => {
    const other = new Registries({ registries: [], allowLoopbackHttp: false });
    await expect(open('team/image', other).head('both', signal)).rejects.toMatchObject({
      reason: 'ImageFetchFailed',
      message: expect.stringContaining('images.registries') as string,
    });
    await other.close();
  });

  it.each([
    [0, BLOB_BYTES],
    [1, 2],
    [MEBIBYTE, 3 * MEBIBYTE],
    [5, 5],
  ])('bytes %i to %i of a blob are just those', async (start, end) => {
    const repository = open('team/image');
    const stream = repository.stream(await firstLayer(repository), { start, end }, signal);
    expect((await buffer(stream)).equals(layer.subarray(start, end))).toBe(true);
  });

  it('at the end of a blob nothing is requested', async () => {
    const repository = open('team/image');
    const descriptor = await firstLayer(repository);
    const before = await registry.requests();
    const { size } = descriptor;
    expect(await buffer(repository.stream(descriptor, { start: size, end: size }, signal))).toHaveLength(0);
    // The registry writes its log after an answer. A later request shows that it has written what came before.
    await repository.head('both', signal);
    const asked = await waitFor('the log', async () => {
      const later = (await registry.requests()).slice(before.length);
      return later.some(({ method }) => method === 'HEAD') && later;
    });
    expect(asked.filter(({ path }) => path.includes('/blobs/'))).toEqual([]);
  });

  it('a small blob is returned as a whole, and a blob above the limit not at all', async () => {
    const repository = open('team/image');
    const { manifest } = await repository.resolve('both', 'amd64', signal);
    const config = await repository.blob(manifest.config, 4096, signal);
    expect(JSON.parse(config.toString())).toMatchObject({ architecture: 'amd64' });
    await expect(repository.blob(manifest.config, 8, signal)).rejects.toMatchObject({
      reason: 'ImageInvalid',
    });
  });

  it('an interrupted transfer continues at the same place', async () => {
    const repository = open('team/image');
    const descriptor = await firstLayer(repository);
    registry.traffic.received = 0;
    registry.traffic.breakAfter(BLOB_BYTES / 2);
    const stream = repository.stream(descriptor, { start: 0, end: BLOB_BYTES }, signal);
    expect((await buffer(stream)).equals(layer)).toBe(true);
    expect(registry.traffic.hasBroken).toBe(true);
    // Only the bytes that were under way at the break come twice.
    expect(registry.traffic.received).toBeLessThan(BLOB_BYTES + 2 * MEBIBYTE);
  });

  it('a registry that is away for a moment is waited for', async () => {
    const repository = open('team/image');
    const descriptor = await firstLayer(repository);
    await registry.stop();
    const stream = buffer(repository.stream(descriptor, { start: 0, end: BLOB_BYTES }, signal));
    await registry.restart();
    expect((await stream).equals(layer)).toBe(true);
  });

  it('a reader that stops reading ends the transfer', async () => {
    const repository = open('team/image');
    const stream = repository.stream(await firstLayer(repository), { start: 0, end: BLOB_BYTES }, signal);
    for await (const chunk of stream) {
      expect(chunk).toBeDefined();
      expect(registry.traffic.connections).toBeGreaterThan(0);
      break;
    }
    await waitFor('the connection of the transfer to end', () => registry.traffic.connections === 0);
    const aborted = new AbortController();
    const other = repository.stream(
      await firstLayer(repository),
      { start: 0, end: BLOB_BYTES },
      aborted.signal,
    );
    aborted.abort(new Error('deleted'));
    await expect(buffer(other)).rejects.toThrow('deleted');
  });

  it('a blob that lost its end is recognised by its manifest', async () => {
    const repository = open('team/broken');
    const content = randomBytes(4096);
    const descriptor = await put(repository, content);
    await truncate(fileOf(descriptor), 1000);
    // The registry keeps the sizes of blobs in memory.
    await registry.restart();
    for (const start of [0, 10]) {
      const stream = repository.stream(descriptor, { start, end: 4096 }, signal);
      await expect(buffer(stream)).rejects.toMatchObject({
        reason: 'ImageFetchFailed',
        message: expect.stringContaining(descriptor.digest) as string,
      });
    }
  });

  it('a blob of other bytes is DigestMismatch', async () => {
    const repository = open('team/broken');
    const descriptor = await put(repository, randomBytes(2048));
    await writeFile(fileOf(descriptor), randomBytes(2048));
    await expect(repository.blob(descriptor, 4096, signal)).rejects.toMatchObject({
      reason: 'DigestMismatch',
    });
  });

  describe('uploads', () => {
    it('make an image that skopeo reads', async () => {
      const repository = open('team/pushed');
      const config = await put(repository, Buffer.from('{"architecture":"amd64","os":"linux"}'));
      const content = randomBytes(3 * MEBIBYTE);
      const layers = [await put(repository, content)];
      const bytes = Buffer.from(
        JSON.stringify({
          schemaVersion: 2,
          mediaType: OCI_MANIFEST,
          config: { ...config, mediaType: OCI_CONFIG },
          layers: layers.map((each) => ({ ...each, mediaType: 'application/vnd.oci.image.layer.v1.tar' })),
        }),
      );
      const digest = await repository.putManifest('v1', OCI_MANIFEST, bytes, signal);
      const seen = JSON.parse(
        await registry.skopeo('inspect', `docker://${registry.host}/team/pushed:v1`),
      ) as unknown;
      expect(seen).toMatchObject({ Digest: digest, Architecture: 'amd64', Layers: [layers[0]?.digest] });
    });

    it('send nothing that the registry has', async () => {
      const repository = open('team/pushed');
      const content = randomBytes(MEBIBYTE);
      const { digest } = await put(repository, content);
      registry.traffic.sent = 0;
      await put(repository, content);
      await expect(repository.has(digest, signal)).resolves.toBe(true);
      expect(registry.traffic.sent).toBeLessThan(10_000);
    });

    it('of bytes that differ from their digest are refused', async () => {
      const digest = `sha256:${'1'.repeat(64)}`;
      const upload = { digest, size: 4, content: () => Buffer.from('text') };
      await expect(open('team/two').upload(upload, signal)).rejects.toMatchObject({
        reason: 'DigestMismatch',
        message: expect.stringContaining('DIGEST_INVALID') as string,
      });
    });

    it('that break off are repeated', async () => {
      const repository = open('team/two');
      const content = randomBytes(BLOB_BYTES);
      const digest = `sha256:${createHash('sha256').update(content).digest('hex')}`;
      registry.traffic.breakAfter(BLOB_BYTES / 2);
      let times = 0;
      const again = (): Readable => {
        times += 1;
        return Readable.from([content.subarray(0, MEBIBYTE), content.subarray(MEBIBYTE)]);
      };
      await repository.upload({ digest, size: BLOB_BYTES, content: again }, signal);
      expect(times).toBe(2);
      const descriptor = { mediaType: '', digest, size: BLOB_BYTES };
      expect((await repository.blob(descriptor, BLOB_BYTES, signal)).equals(content)).toBe(true);
    });
  });

  it('ask once for a password in many requests', async () => {
    const repository = open('team/image');
    const descriptor = await firstLayer(repository);
    const requests = async () =>
      (await registry.requests()).filter(({ path }) => path.startsWith('/v2/team/image/'));
    const before = (await requests()).length;
    const ranges = Array.from({ length: 8 }, (_, index) => ({
      start: index * MEBIBYTE,
      end: (index + 1) * MEBIBYTE,
    }));
    await Promise.all(
      ranges.map(async (range) => await buffer(repository.stream(descriptor, range, signal))),
    );
    // The log has the blob of an earlier test perhaps only now, because the registry writes it after the last byte was sent.
    await waitFor('the log', async () => (await requests()).length >= before + 8);
    const statuses = (await requests()).slice(before).map(({ status }) => status);
    expect(statuses).toEqual(Array.from({ length: 8 }, () => 206));
  });
});
