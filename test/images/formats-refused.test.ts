/** Images in a real registry that break the rules of their layout. Each is refused with its fault, and leaves no disk. */
import { randomBytes } from 'node:crypto';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { publishDisk } from '../../agent/images/layouts/publish.ts';
import type { Manifest } from '../../agent/images/oci/manifests.ts';
import type { Repository } from '../../agent/images/oci/repository.ts';
import { lz4Stream } from '../fixtures/lz4.ts';
import { pull, PullWorld } from '../worlds/pulls.ts';
import type { TestRegistry } from '../wires/registry.ts';
import { tartImage } from '../fixtures/tart.ts';
import {
  containerImage,
  type ImageToPush,
  pushImage,
  sha256,
  tarOf,
  writeRawDisk,
} from '../fixtures/vmimages.ts';

const MIB = 1024 * 1024;
const { signal } = new AbortController();

let world: PullWorld;
let registry: TestRegistry;
let repository: Repository;
let folder: string;
let count = 0;
const disk = randomBytes(MIB);

beforeAll(async () => {
  world = await PullWorld.start();
  registry = world.registry;
  repository = world.repository('refused');
});

afterAll(async () => await world?.[Symbol.asyncDispose]());

beforeEach(async () => {
  folder = await world.folder();
});

afterEach(() => rm(folder, { recursive: true }));

async function pushed(image: ImageToPush): Promise<string> {
  count += 1;
  const tag = `image-${count}`;
  await pushImage(repository, tag, image);
  return tag;
}

/** Checks that no disk is left. Remaining chunks may serve a later attempt. */
async function expectRefused(tag: string, reason: Reason, message: string): Promise<void> {
  const pulled = pull(repository, { folder: join(folder, 'pull'), tag });
  await expect(pulled).rejects.toMatchObject({ reason, message: expect.stringContaining(message) });
  expect(await readdir(folder, { recursive: true })).not.toContain('pull/disk');
}

async function expectDisk(tag: string, content = disk): Promise<void> {
  const pulled = await pull(repository, { folder: join(folder, 'pull'), tag });
  expect((await readFile(pulled.disk)).equals(content)).toBe(true);
}

const file = { name: 'disk/disk.img', content: disk };
const other = { name: 'disk/other.img', content: randomBytes(512) };

describe('an image for another architecture than the machine is refused, with both in the message:', () => {
  const layer = tarOf([file]);

  async function expectMismatch(tag: string, machine: 'amd64' | 'arm64'): Promise<void> {
    const other = machine === 'amd64' ? 'arm64' : 'amd64';
    const pulled = pull(repository, { folder: join(folder, 'pull'), tag, architecture: machine });
    await expect(pulled).rejects.toMatchObject({
      reason: 'ImageArchitectureMismatch',
      message: expect.stringContaining(`is an image for ${other}, and the machine is ${machine}`) as string,
    });
    expect(await readdir(folder, { recursive: true })).not.toContain('pull');
  }

  it('a container image, unless its configuration has no architecture', async () => {
    const image = containerImage([layer]);
    await expectMismatch(await pushed(image), 'arm64');
    for (const said of ['{}', '{"architecture":""}', '{"architecture":7}', '[]']) {
      const config = { ...image.config, bytes: Buffer.from(said) };
      const tag = await pushed({ ...image, config });
      for (const architecture of ['amd64', 'arm64'] as const) {
        const folderOfIts = join(folder, `${tag}-${architecture}`);
        await expect(pull(repository, { folder: folderOfIts, tag, architecture })).resolves.toBeDefined();
      }
    }
  });

  it('a Tart image, by the configuration of its machine; without an architecture it is for arm64', async () => {
    const raw = join(folder, 'raw');
    await writeRawDisk(raw, 1);
    await expectMismatch(await pushed(await tartImage(raw, { architecture: 'arm64' })), 'amd64');
    const image = await tartImage(raw, { architecture: 'amd64' });
    await expectMismatch(await pushed(image), 'arm64');
    const layers = image.layers.map((one, at) => (at === 0 ? { ...one, bytes: Buffer.from('{}') } : one));
    await expectMismatch(await pushed({ ...image, layers }), 'amd64');
  });

  it('a disk of our own, unless its architecture is unknown', async () => {
    const path = join(folder, 'raw');
    await writeRawDisk(path, 1);
    const what = { repository, path, virtualSizeBytes: MIB };
    const options = { signal, onBytes: () => undefined };
    await publishDisk({ ...what, tag: 'arm64', architecture: 'arm64' }, options);
    await expectMismatch('arm64', 'amd64');
    await publishDisk({ ...what, tag: 'unsaid' }, options);
    for (const architecture of ['amd64', 'arm64'] as const) {
      const folderOfIts = join(folder, architecture);
      await expect(
        pull(repository, { folder: folderOfIts, tag: 'unsaid', architecture }),
      ).resolves.toBeDefined();
    }
  });
});

describe('a container image', () => {
  it.each([
    ['leads out of its folder', [{ name: 'disk/../../escaped', content: disk }], 'leads out of its folder'],
    ['is absolute', [{ name: '/disk/disk.img', content: disk }], 'is absolute'],
    ['is a symbolic link', [{ ...file, type: '2', linkName: '/etc/passwd' }], 'has the type link'],
    ['is a hard link', [{ ...file, type: '1', linkName: 'etc/passwd' }], 'has the type link'],
    ['is a device', [{ ...file, type: '4' }], 'has the type device'],
    ['is sparse in a way that is not read', [{ ...file, type: 'S' }], 'sparse tar entry'],
    ['lies in a folder that is a link', [{ name: 'disk', type: '2', linkName: 'etc' }], 'not a folder'],
    ['lies deeper', [{ name: 'disk/a/disk.img', content: disk }], 'subfolder of /disk'],
    ['has another beside it', [file, other], 'more than one file'],
    ['is nowhere', [{ name: 'etc/disk.img', content: disk }], 'has no disk'],
    ['is a string that only begins so', [{ name: 'disks/disk.img', content: disk }], 'has no disk'],
    ['claims 80 GB and has 1 MiB', [{ ...file, size: 80e9 }], 'unpacks to more than'],
    ['claims 20 GB and has 1 MiB', [{ ...file, size: 20e9 }], 'bytes of a file are missing'],
  ])('whose disk %s is refused', async (_what, items, message) => {
    await expectRefused(await pushed(containerImage([tarOf(items)])), 'ImageInvalid', message);
  });

  it.each([
    ['zstd' as const, (tar: Buffer) => zstdCompressSync(tar).subarray(0, -5), 'zstd content is broken'],
    ['gzip' as const, (tar: Buffer) => gzipSync(tar).subarray(0, -5), 'gzip content is broken'],
    ['gzip' as const, (tar: Buffer) => zstdCompressSync(tar), 'gzip content is broken'],
    ['zstd' as const, (tar: Buffer) => gzipSync(tar), 'does not begin with a zstd frame'],
  ])('whose %s layer is cut or something else is refused', async (encoding, pack, message) => {
    const tag = await pushed(containerImage([pack(tarOf([file]))], encoding));
    await expectRefused(tag, 'ImageInvalid', message);
  });

  it('whose layer has several zstd frames gives the content of all', async () => {
    const tar = tarOf([file]);
    const parts = [tar.subarray(0, 700_000), tar.subarray(700_000)].map((part) => zstdCompressSync(part));
    const tag = await pushed(containerImage([Buffer.concat(parts)], 'zstd', [sha256(tar)]));
    await expectDisk(tag);
  });

  it('whose content differs from its configuration is refused', async () => {
    const tag = await pushed(containerImage([gzipSync(tarOf([file]))], 'gzip', [sha256(disk)]));
    await expectRefused(tag, 'ImageInvalid', 'but the configuration of the image states');
  });

  it('whose blob differs from its digest is refused, until the registry gives the right blob', async () => {
    const layer = tarOf([file]);
    const tag = await pushed(containerImage([layer]));
    const hex = sha256(layer).slice('sha256:'.length);
    const blob = join(
      registry.directory,
      `data/docker/registry/v2/blobs/sha256/${hex.slice(0, 2)}/${hex}/data`,
    );
    const wrong = Buffer.from(layer);
    wrong[600_000] = (wrong[600_000] ?? 0) ^ 1;
    await writeFile(blob, wrong);
    await expectRefused(tag, 'DigestMismatch', sha256(wrong));
    await writeFile(blob, layer);
    await expectDisk(tag);
  });

  it.each([
    ['the uppermost that has one', [[other], [file], [{ name: 'etc/x' }]], 'found'],
    ['not one that is replaced', [[{ ...file, content: other.content }], [file]], 'found'],
    ['not one that is taken away', [[other], [{ name: 'disk/.wh.other.img' }]], 'has no disk'],
    ['not one whose folder is taken away', [[other], [{ name: '.wh.disk' }]], 'has no disk'],
    ['not one below an opaque folder', [[other], [{ name: 'disk/.wh..wh..opq' }]], 'has no disk'],
    ['the one that is left', [[other, file], [{ name: 'disk/.wh.other.img' }]], 'found'],
    ['one above those of a broken layer', [[{ name: '../x' }], [file]], 'found'],
  ])('of several layers takes its disk from the right one: %s', async (_what, layers, expected) => {
    const tag = await pushed(containerImage(layers.map((items) => tarOf(items))));
    if (expected === 'found') {
      await expectDisk(tag);
    } else {
      await expectRefused(tag, 'ImageInvalid', expected);
    }
  });

  it('that is no image is refused with its real type', async () => {
    const image = containerImage([randomBytes(10)]);
    const tag = await pushed({
      ...image,
      config: { ...image.config, mediaType: 'application/vnd.example.config' },
      layers: [{ mediaType: 'application/vnd.example.cake', bytes: randomBytes(10) }],
    });
    await expectRefused(tag, 'ImageInvalid', 'application/vnd.example.config, application/vnd.example.cake');
  });
});

describe('a Tart image', () => {
  let image: ImageToPush;
  let wrong: Buffer;

  beforeEach(async () => {
    const raw = join(folder, 'raw');
    await writeRawDisk(raw, 4);
    image = await tartImage(raw, { layerBytes: 2 * MIB });
    // Data in place of zeros, with the same length.
    wrong = lz4Stream(Buffer.concat([Buffer.alloc(MIB), (await readFile(raw)).subarray(0, MIB)]));
  });

  function withLayer(index: number, change: Partial<ImageToPush['layers'][number]>): ImageToPush {
    const layers = image.layers.map((layer, at) => (at === index ? { ...layer, ...change } : layer));
    return { ...image, layers };
  }

  const note = 'org.cirruslabs.tart.';

  it('of the old layout is refused', async () => {
    const tag = await pushed(withLayer(1, { mediaType: 'application/vnd.cirruslabs.tart.disk.v1' }));
    await expectRefused(tag, 'ImageInvalid', 'old layout');
  });

  it('whose disk is not raw is refused', async () => {
    const config = Buffer.from('{"diskFormat":"asif"}');
    await expectRefused(await pushed(withLayer(0, { bytes: config })), 'ImageInvalid', 'the format asif');
  });

  it('without NVRAM is refused', async () => {
    const tag = await pushed({ ...image, layers: image.layers.slice(0, -1) });
    await expectRefused(tag, 'ImageInvalid', 'has 0 layers of type application/vnd.cirruslabs.tart.nvram.v1');
  });

  it.each([
    ['without sizes', {}, 'uncompressed-size'],
    ['without digests', { [`${note}uncompressed-size`]: '1048576' }, 'uncompressed-content-digest'],
  ])('%s is refused', async (_what, annotations, message) => {
    await expectRefused(await pushed(withLayer(1, { annotations })), 'ImageInvalid', message);
  });

  it('whose sizes contradict each other is refused', async () => {
    const annotations = { [`${note}uncompressed-disk-size`]: '5242880' };
    await expectRefused(
      await pushed({ ...image, annotations }),
      'ImageInvalid',
      '5242880 bytes, but its layers',
    );
  });

  it('whose layer has other content than declared is refused', async () => {
    const annotations = { ...image.layers[1]?.annotations };
    annotations[`${note}uncompressed-content-digest`] = sha256(disk);
    await expectRefused(
      await pushed(withLayer(1, { annotations })),
      'DigestMismatch',
      'has the digest sha256:',
    );
  });

  it('whose stream is broken is refused', async () => {
    const cut = image.layers[1]?.bytes.subarray(0, -6) ?? Buffer.alloc(0);
    await expectRefused(await pushed(withLayer(1, { bytes: cut })), 'ImageInvalid', 'LZ4 stream is broken');
  });

  it('whose blob differs from its digest is refused, until the registry gives the right blob', async () => {
    const tag = await pushed(image);
    const layer = image.layers[1]?.bytes ?? Buffer.alloc(0);
    const hex = sha256(layer).slice('sha256:'.length);
    const blob = join(
      registry.directory,
      `data/docker/registry/v2/blobs/sha256/${hex.slice(0, 2)}/${hex}/data`,
    );
    await writeFile(blob, wrong);
    await expectRefused(tag, 'DigestMismatch', sha256(wrong));
    await writeFile(blob, layer);
    await expectDisk(tag, await readFile(join(folder, 'raw')));
  });
});

describe('a disk of our own', () => {
  let manifest: Manifest;
  let config: { rootfs: { diff_ids: string[] }; 'dev.berth.disk': { map: unknown; chunkSize: number } };

  beforeEach(async () => {
    const path = join(folder, 'raw');
    await writeFile(path, Buffer.concat([disk, Buffer.alloc(15 * MIB), disk]));
    const architecture = 'amd64' as const;
    const what = { repository, tag: 'own', path, virtualSizeBytes: 17 * MIB, architecture };
    await publishDisk(what, { signal, onBytes: () => undefined });
    manifest = (await repository.resolve('own', 'amd64', signal)).manifest;
    config = JSON.parse((await repository.blob(manifest.config, MIB, signal)).toString()) as typeof config;
  });

  async function pushChanged(): Promise<string> {
    const layers = await Promise.all(
      manifest.layers.map(async (layer) => ({
        mediaType: layer.mediaType,
        bytes: await repository.blob(layer, 16 * MIB, signal),
      })),
    );
    return await pushed({
      config: { mediaType: manifest.config.mediaType, bytes: Buffer.from(JSON.stringify(config)) },
      layers,
      artifactType: 'application/vnd.berth.disk.v1',
    });
  }

  it.each([
    [
      'out of order',
      [
        [1, 0],
        [0, 1],
      ],
      'out of order',
    ],
    [
      'beyond the disk',
      [
        [0, 0],
        [2, 1],
      ],
      'beyond the end of the disk',
    ],
    [
      'twice',
      [
        [0, 0],
        [0, 1],
      ],
      'out of order',
    ],
    [
      'in a layer that is not there',
      [
        [0, 0],
        [1, 2],
      ],
      'only 2 layers',
    ],
    ['nowhere', [[0]], 'configuration of the disk artifact is invalid at'],
  ])('with a chunk %s is refused', async (_what, map, message) => {
    config['dev.berth.disk'].map = map;
    await expectRefused(await pushChanged(), 'ImageInvalid', message);
  });

  it('with chunks of 1 GiB is refused', async () => {
    config['dev.berth.disk'].chunkSize = 1024 * MIB;
    await expectRefused(await pushChanged(), 'ImageInvalid', 'chunkSize');
  });

  it('with a chunk that is shorter than declared is refused', async () => {
    config['dev.berth.disk'].map = [
      [0, 1],
      [1, 1],
    ];
    await expectRefused(await pushChanged(), 'ImageInvalid', 'bytes instead of');
  });

  it('with a chunk that gives more bytes than allowed is refused', async () => {
    config['dev.berth.disk'].map = [[1, 0]];
    await expectRefused(await pushChanged(), 'ImageInvalid', 'unpacks to more than');
  });

  it('with a chunk of another content is refused', async () => {
    config.rootfs.diff_ids[1] = sha256(Buffer.alloc(1));
    await expectRefused(await pushChanged(), 'ImageInvalid', 'has the digest sha256:');
  });

  it('with fewer digests than layers is refused', async () => {
    config.rootfs.diff_ids.pop();
    await expectRefused(await pushChanged(), 'ImageInvalid', 'digests for 1');
  });
});
