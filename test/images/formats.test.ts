/** Disks from a real registry, in every layout that the agent reads. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { open, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { lookupIn, readChunkTable } from '../../agent/images/layouts/chunks.ts';
import { type DiskToPublish, publishDisk } from '../../agent/images/layouts/publish.ts';
import type { Repository } from '../../agent/images/oci/repository.ts';
import { allocated, compareDisks, pull, PullWorld } from '../worlds/pulls.ts';
import type { TestRegistry } from '../wires/registry.ts';
import { pushTart } from '../fixtures/tart.ts';
import { pushContainerDisk, writeRawDisk } from '../fixtures/vmimages.ts';

const run = promisify(execFile);
const MIB = 1024 * 1024;
const DISK_MIB = 96;
const NOISE_MIB = 128;
const CHUNK = 16 * MIB;
const { signal } = new AbortController();

let world: PullWorld;
let registry: TestRegistry;
/** A disk of 96 MiB, in which every second MiB is a hole. */
let disk: string;
/** A disk of 128 MiB that cannot be compressed. */
let noise: string;
let folder: string;

beforeAll(async () => {
  world = await PullWorld.start();
  registry = world.registry;
  disk = join(world.root, 'disk.raw');
  await writeRawDisk(disk, DISK_MIB);
  noise = join(world.root, 'noise.raw');
  await writeFile(noise, randomBytes(NOISE_MIB * MIB));
});

afterAll(async () => await world?.[Symbol.asyncDispose]());

beforeEach(async () => {
  folder = await world.folder();
});

afterEach(() => rm(folder, { recursive: true }));

function repository(name: string): Repository {
  return world.repository(name);
}

async function expectSame(pulled: string, source = disk): Promise<void> {
  await compareDisks(pulled, source);
  // The file system may need one block more to record where the data is.
  expect(await allocated(pulled)).toBeLessThanOrEqual((await allocated(source)) + 16 * 1024);
}

/** Cuts a pull in its middle and continues it. Only the part that was under way may be fetched again. */
async function expectResumed(from: Repository, source: string, underWay: number): Promise<void> {
  const total = (await pull(from, { folder, abortAfter: 1 })).downloadBytes;
  const cut = await pull(from, { folder, abortAfter: total * 0.7 });
  expect(await readdir(folder)).not.toContain('disk');
  const again = await pull(from, { folder });
  expect(again.spared).toBeGreaterThanOrEqual(cut.fetched - underWay);
  expect(again.spared).toBeGreaterThan(0);
  expect(again.fetched).toBeLessThanOrEqual(total - again.spared);
  await compareDisks(again.disk, source);
  expect((await pull(from, { folder })).fetched).toBe(0);
}

describe('a container image with a disk', () => {
  it.each([
    ['gzip', {}],
    ['zstd', { encoding: 'zstd' as const }],
    ['docker', { docker: true }],
  ])('gives it sparse, from %s layers', async (name, options) => {
    await pushContainerDisk(registry, `containerdisk/${name}`, disk, options);
    const pulled = await pull(repository(`containerdisk/${name}`), { folder });
    await expectSame(pulled.disk);
    expect(pulled.fetched).toBe(pulled.downloadBytes);
    expect((await readdir(folder)).sort()).toEqual(['disk', 'journal']);
  });

  it('gives a qcow2 disk unchanged', async () => {
    const qcow2 = join(folder, 'source.qcow2');
    await run('qemu-img', ['convert', '-f', 'raw', '-O', 'qcow2', disk, qcow2]);
    await pushContainerDisk(registry, 'containerdisk/qcow2', qcow2);
    const pulled = await pull(repository('containerdisk/qcow2'), { folder: join(folder, 'pull') });
    expect((await readFile(pulled.disk)).equals(await readFile(qcow2))).toBe(true);
  });

  it('continues after a cut', async () => {
    await pushContainerDisk(registry, 'containerdisk/noise', noise, { encoding: 'zstd' });
    await expectResumed(repository('containerdisk/noise'), noise, 4 * CHUNK);
  });
});

describe('a Tart image', () => {
  it('gives its disk sparse, and the other files of the image beside it', async () => {
    const nvram = randomBytes(3 * MIB);
    await pushTart(registry, 'tart/disk:latest', disk, { layerBytes: 40 * MIB, nvram });
    const pulled = await pull(repository('tart/disk'), { folder });
    await expectSame(pulled.disk);
    expect(pulled.fetched).toBe(pulled.downloadBytes);
    expect((await readFile(join(folder, 'nvram.bin'))).equals(nvram)).toBe(true);
    expect(JSON.parse(await readFile(join(folder, 'config.json'), 'utf8'))).toMatchObject({ cpuCount: 2 });
  });

  it('continues after a cut', async () => {
    await pushTart(registry, 'tart/layers:latest', disk, { layerBytes: 4 * MIB });
    await expectResumed(repository('tart/layers'), disk, 4 * 3 * MIB);
    await expectSame(join(folder, 'disk'));
  });

  it('takes content from this host if the host has it', async () => {
    await pushTart(registry, 'tart/known:latest', disk, { layerBytes: 16 * MIB });
    const first = await pull(repository('tart/known'), { folder: join(folder, 'first') });
    const lookup = lookupIn([{ disk: first.disk, chunks: await readChunkTable(join(folder, 'first')) }]);
    const second = await pull(repository('tart/known'), { folder: join(folder, 'second'), lookup });
    expect(second.fetched).toBe('nvram'.length);
    await expectSame(second.disk);
  });
});

describe('a disk of our own', () => {
  function toPublish(name: string, path = disk): DiskToPublish {
    const virtualSizeBytes = DISK_MIB * MIB;
    return { repository: repository(name), tag: 'latest', path, virtualSizeBytes, architecture: 'amd64' };
  }

  async function publish(
    what: DiskToPublish,
  ): Promise<{ digest: string; storageBytes: number; sent: number }> {
    const before = registry.traffic.sent;
    let dealtWith = 0;
    const published = await publishDisk(what, { signal, onBytes: (count) => (dealtWith += count) });
    expect(dealtWith).toBe(what.virtualSizeBytes);
    return { ...published, sent: registry.traffic.sent - before };
  }

  it('is the same after publishing and pulling, and other tools can inspect it', async () => {
    const { digest, storageBytes } = await publish(toPublish('own/disk'));
    const pulled = await pull(repository('own/disk'), { folder });
    await expectSame(pulled.disk);
    expect(pulled.fetched).toBe(pulled.downloadBytes);
    expect(storageBytes).toBeGreaterThan(pulled.downloadBytes);
    const raw = await registry.skopeo('inspect', '--raw', `docker://${registry.host}/own/disk`);
    expect(JSON.parse(raw)).toMatchObject({ artifactType: 'application/vnd.berth.disk.v1' });
    const seen = await registry.skopeo('inspect', `docker://${registry.host}/own/disk:latest`);
    expect(JSON.parse(seen)).toMatchObject({ Digest: digest, Architecture: 'amd64', Os: 'unknown' });
    await registry.skopeo(
      'copy',
      `docker://${registry.host}/own/disk:latest`,
      `docker://${registry.host}/own/mirror:latest`,
    );
    expect(await repository('own/mirror').head('latest', signal)).toBe(digest);
    expect((await publish(toPublish('own/disk'))).digest).toBe(digest);
  });

  it('of zeros has no layer', async () => {
    const zeros = join(folder, 'zeros');
    await writeFile(zeros, Buffer.alloc(5 * MIB));
    const { storageBytes } = await publish(toPublish('own/zeros', zeros));
    expect(storageBytes).toBeLessThan(1000);
    const pulled = await pull(repository('own/zeros'), { folder: join(folder, 'pull') });
    expect(pulled).toMatchObject({ fetched: 0, downloadBytes: 0, roomBytes: 0 });
    expect(await allocated(pulled.disk)).toBe(0);
    expect((await stat(pulled.disk)).size).toBe(DISK_MIB * MIB);
  });

  it('has equal content only once', async () => {
    const twice = join(folder, 'twice');
    const noise = randomBytes(CHUNK);
    const file = await open(twice, 'w');
    for (const index of [0, 2, 3]) {
      await file.write(noise, 0, CHUNK, index * CHUNK);
    }
    await file.truncate(DISK_MIB * MIB);
    await file.close();
    const { storageBytes, sent } = await publish(toPublish('own/twice', twice));
    expect(storageBytes).toBeLessThan(CHUNK + MIB);
    expect(sent).toBeLessThan(CHUNK + 2 * MIB);
    const pulled = await pull(repository('own/twice'), { folder: join(folder, 'pull') });
    await compareDisks(pulled.disk, twice);
  });

  it('continues after a cut', async () => {
    await publish({ ...toPublish('own/noise', noise), virtualSizeBytes: NOISE_MIB * MIB });
    await expectResumed(repository('own/noise'), noise, 4 * (CHUNK + MIB));
  });

  it('costs only the difference from another version, to publish and to pull', async () => {
    await publish(toPublish('own/versions'));
    const first = join(folder, 'first');
    await pull(repository('own/versions'), { folder: first });
    const chunks = await readChunkTable(first);
    const changed = join(folder, 'changed');
    await run('cp', ['--sparse=always', disk, changed]);
    const file = await open(changed, 'r+');
    await file.write(randomBytes(MIB), 0, MIB, 2 * CHUNK);
    await file.close();

    const published = await publish({ ...toPublish('own/versions', changed), tag: 'second' });
    const [, , third] = await readChunkTable(first);
    expect(published.sent).toBeLessThan((third?.size ?? 0) + 2 * MIB);

    const lookup = lookupIn([{ disk: join(first, 'disk'), chunks }]);
    const second = await pull(repository('own/versions'), {
      folder: join(folder, 'second'),
      tag: 'second',
      lookup,
    });
    expect(second.fetched).toBeLessThan((third?.size ?? 0) + 2 * MIB);
    expect(second.fetched + second.spared).toBe(second.downloadBytes);
    await compareDisks(second.disk, changed);
  });

  it('is fetched if the content on the host has changed, also after a cut', async () => {
    await publish(toPublish('own/changed'));
    const first = await pull(repository('own/changed'), { folder: join(folder, 'first') });
    const chunks = await readChunkTable(join(folder, 'first'));
    const file = await open(first.disk, 'r+');
    await file.write(randomBytes(MIB), 0, MIB, MIB);
    await file.close();
    const lookup = lookupIn([{ disk: first.disk, chunks }]);
    const second = await pull(repository('own/changed'), { folder: join(folder, 'second'), lookup });
    expect(second.fetched).toBe(chunks[0]?.size);
    await compareDisks(second.disk, disk);

    const third = join(folder, 'third');
    await pull(repository('own/changed'), { folder: third, lookup, abortAfter: 1 });
    expect(await readdir(third)).not.toContain('disk');
    await compareDisks((await pull(repository('own/changed'), { folder: third })).disk, disk);
  });
});
