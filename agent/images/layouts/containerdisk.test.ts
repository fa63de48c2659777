import { execFileSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, open, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { unpackedLimit } from '../../disks/unpack.ts';
import type { Descriptor } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import { extractDisk, planContainerDisk } from './containerdisk.ts';
import type { PullPlan } from './pull.ts';
import { DirectFile } from '../../disks/diskio.ts';
import { makeFolder } from '../../../test/support/folder.ts';

/** The limit is 3 MiB here, because content of its real size takes a minute. */
vi.mock('../../disks/unpack.ts', async (load) => ({
  ...(await load<object>()),
  unpackedLimit: vi.fn(() => 3 * 1024 ** 2),
}));

const MEBIBYTE = 1024 ** 2;
const LAYER = 'application/vnd.oci.image.layer.v1.tar';
const CONFIG = 'application/vnd.oci.image.config.v1+json';
const { signal } = new AbortController();

describe('a container image', () => {
  let folder: string;

  beforeEach(() => {
    folder = makeFolder();
  });

  async function layerOf(name: string, bytes: number): Promise<Buffer> {
    const root = join(folder, 'root');
    await mkdir(dirname(join(root, name)), { recursive: true });
    await writeFile(join(root, name), Buffer.alloc(bytes, 1));
    const archive = execFileSync('tar', ['-c', '-C', root, '.'], { maxBuffer: 4 * MEBIBYTE });
    await rm(root, { recursive: true });
    return archive;
  }

  async function planOf(layers: readonly Buffer[]): Promise<PullPlan | undefined> {
    const blobs = new Map<string, Buffer>();
    const described = (mediaType: string, bytes: Buffer): Descriptor => {
      const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
      blobs.set(digest, bytes);
      return { mediaType, digest, size: bytes.length };
    };
    const manifest = {
      mediaType: 'application/vnd.oci.image.manifest.v1+json',
      config: described(CONFIG, Buffer.from('{"architecture":"amd64"}')),
      layers: layers.map((bytes) => described(LAYER, bytes)),
    };
    const bytesOf = ({ digest }: Descriptor): Buffer => blobs.get(digest) ?? Buffer.alloc(0);
    const repository = {
      name: 'registry.example/team/image',
      blob: async (descriptor: Descriptor) => bytesOf(descriptor),
      stream: (descriptor: Descriptor, { start, end }: { start: number; end: number }) =>
        Readable.from([bytesOf(descriptor).subarray(start, end)]),
    } as unknown as Repository;
    const resolved = { digest: 'sha256:1', tagDigest: 'sha256:1', architecture: undefined, manifest };
    return await planContainerDisk(repository, resolved, signal);
  }

  async function pulledBytes(layers: readonly Buffer[]): Promise<number> {
    const pull = await mkdtemp(join(folder, 'pull-'));
    const disk = join(pull, 'disk');
    await (await planOf(layers))?.run({ folder: pull, disk }, { signal, onBytes: () => undefined });
    return (await stat(disk)).size;
  }

  it('may unpack to one limit for all layers together, which follows from their sizes', async () => {
    const disk = await layerOf('disk/disk.img', 2 * MEBIBYTE);
    const [small, large] = [await layerOf('etc/file', 1000), await layerOf('etc/file', 1.5 * MEBIBYTE)];
    await expect(pulledBytes([disk, large])).rejects.toMatchObject({
      kind: 'invalid',
      message: expect.stringContaining(`more than ${3 * MEBIBYTE} bytes`) as string,
    });
    expect(await pulledBytes([disk, small])).toBe(2 * MEBIBYTE);
    expect(vi.mocked(unpackedLimit)).toHaveBeenLastCalledWith(disk.length + small.length);
  });

  it('has at most 128 layers', async () => {
    const layers = (count: number): Buffer[] => Array<Buffer>(count).fill(Buffer.alloc(1024));
    await expect(planOf(layers(128))).resolves.toBeDefined();
    await expect(planOf(layers(129))).rejects.toMatchObject({
      reason: 'ImageInvalid',
      message: 'registry.example/team/image has 129 layers, more than the allowed 128',
    });
  });
});

const PIECE_BYTES = 4096;

it('writes a disk that comes in small pieces by the mebibyte where direct writes are impossible', async () => {
  const folder = makeFolder();
  const content = randomBytes(4 * MEBIBYTE);
  await mkdir(join(folder, 'root', 'disk'), { recursive: true });
  await writeFile(join(folder, 'root', 'disk', 'disk.img'), content);
  const archive = execFileSync('tar', ['-c', '-C', join(folder, 'root'), '.'], { maxBuffer: 8 * MEBIBYTE });
  async function* pieces(): AsyncGenerator<Buffer> {
    for (let at = 0; at < archive.length; at += PIECE_BYTES) {
      yield archive.subarray(at, at + PIECE_BYTES);
    }
  }
  const disk = join(folder, 'disk.img');
  const file = await open(disk, 'w');
  const write = vi.spyOn(Object.getPrototypeOf(file) as typeof file, 'write');
  onTestFinished(() => write.mockRestore());
  await file.close();
  const direct = vi.spyOn(DirectFile, 'open').mockResolvedValue(undefined);
  onTestFinished(() => direct.mockRestore());
  const covering = { hidden: new Set<string>(), opaque: false };
  const allowance = { limitBytes: 8 * MEBIBYTE, leftBytes: 8 * MEBIBYTE };
  const layer = { encoding: 'none' as const, diffId: undefined };
  const { signal } = new AbortController();
  expect(await extractDisk(layer, pieces(), { disk, covering, allowance }, signal)).toBe(true);
  expect((await readFile(disk)).equals(content)).toBe(true);
  expect(write.mock.calls.map(([bytes]) => (bytes as unknown as Buffer).length)).toEqual(
    Array(4).fill(MEBIBYTE),
  );
});
