import { mkdir, readdir, readlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { array, assert, integer, oneof, property, uniqueArray } from 'fast-check';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import type { Descriptor, ResolvedManifest } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import {
  ARTIFACT_TYPE,
  CHUNK_LIMIT,
  CHUNK_TYPE,
  chunksAtOnce,
  chunkSizeFor,
  chunksOf,
  CONFIG_TYPE,
  LAYER_LIMIT,
  MANIFEST_TYPE,
  planArtifact,
} from './artifact.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const DIGEST = `sha256:${'1'.repeat(64)}`;
const CONFIG = {
  architecture: 'amd64',
  os: 'linux',
  rootfs: { type: 'layers', diff_ids: [] },
  'dev.berth.disk': { version: 1, virtualSize: 512, chunkSize: 512, map: [] },
};

/** Returns the files in `folder` that this process has open. */
async function openFiles(folder: string): Promise<string[]> {
  const links = (await readdir('/proc/self/fd')).map((fd) => readlink(join('/proc/self/fd', fd)));
  const paths = await Promise.all(links.map((link) => undefinedIf(isMissing, link)));
  return paths.filter((path) => path !== undefined).filter((path) => path.startsWith(folder));
}

/** Plans the pull of a disk with the layers. `layout` contains the values of the disk's layout that differ from {@link CONFIG}. */
async function planOf(layers: readonly Descriptor[], layout: object) {
  const config = { mediaType: CONFIG_TYPE, digest: DIGEST, size: 1 };
  const manifest = { mediaType: MANIFEST_TYPE, artifactType: ARTIFACT_TYPE, config, layers: [...layers] };
  const resolved: ResolvedManifest = {
    digest: DIGEST,
    tagDigest: DIGEST,
    architecture: undefined,
    manifest,
  };
  const document = {
    ...CONFIG,
    rootfs: { type: 'layers', diff_ids: layers.map(() => DIGEST) },
    'dev.berth.disk': { ...CONFIG['dev.berth.disk'], ...layout },
  };
  const blob = async () => Buffer.from(JSON.stringify(document));
  const stream = () => {
    throw new Error('no blob');
  };
  const repository = { name: 'registry.example/disk', blob, stream } as unknown as Repository;
  return await planArtifact(repository, resolved, new AbortController().signal);
}

async function givenFolder(): Promise<string> {
  const folder = makeFolder();
  return folder;
}

it('a pull that cannot open its file for direct writes leaves no file open', async () => {
  const folder = await givenFolder();
  const plan = await planOf([], {});
  const target = { folder, disk: join(folder, 'disk') };
  // The journal of an earlier attempt keeps the content of the folder. A folder in place of the trial file makes the opening fail.
  await writeFile(join(folder, 'journal'), `${DIGEST}\n`);
  await mkdir(join(folder, 'disk.part.probe'));
  const { signal } = new AbortController();
  await expect(plan?.run(target, { signal, onBytes: () => undefined })).rejects.toThrow('EISDIR');
  expect(await openFiles(folder)).toEqual([]);
});

it('a pull of a disk with as many chunks as a configuration can list begins to fetch them', async () => {
  const folder = await givenFolder();
  const layers = Array.from({ length: LAYER_LIMIT }, () => ({
    mediaType: CHUNK_TYPE,
    digest: DIGEST,
    size: 1,
  }));
  const map = Array.from({ length: CHUNK_LIMIT }, (_, index) => [index, 0]);
  const plan = await planOf(layers, { virtualSize: CHUNK_LIMIT * 512, map });
  const { signal } = new AbortController();
  const target = { folder, disk: join(folder, 'disk') };
  await expect(plan?.run(target, { signal, onBytes: () => undefined })).rejects.toThrow('no blob');
});

const SECTOR = 512;
const MIB = 1024 * 1024;
const GIB = 1024 * MIB;

describe('the chunks of a disk', () => {
  it('lie side by side within the disk, and cover all of its data', () => {
    assert(
      property(integer({ min: 1, max: 5000 }), integer({ min: 1, max: 100 }), (sectors, chunkSectors) => {
        const [virtualSize, chunkSize] = [sectors * SECTOR, chunkSectors * SECTOR];
        const map = Array.from(
          { length: Math.ceil(virtualSize / chunkSize) },
          (_, index): [number, number] => [index, 0],
        );
        let end = 0;
        for (const { offset, length } of chunksOf({ version: 1, virtualSize, chunkSize, map }, 1)) {
          expect(offset).toBe(end);
          expect(length).toBeGreaterThan(0);
          end = offset + length;
        }
        expect(end).toBe(virtualSize);
      }),
    );
  });

  it('never overlap and never leave the disk, in any map', () => {
    const chunkSize = MIB;
    // Some disks are smaller than their map requires, and some are larger.
    const sizes = integer({ min: 1, max: (400 * MIB) / SECTOR }).map((sectors) => sectors * SECTOR);
    const maps = uniqueArray(integer({ min: 0, max: 300 }), { maxLength: 50 });
    const sorted = maps.map((map) => map.toSorted((first, second) => first - second));
    const layers = array(integer({ min: 0, max: 5 }), { maxLength: 50 });
    assert(
      property(sizes, oneof(maps, sorted), layers, (virtualSize, map, layerOf) => {
        const pairs = map.map((index, at): [number, number] => [index, layerOf[at] ?? 0]);
        const chunks = chunksOrRefusal({ version: 1, virtualSize, chunkSize, map: pairs }, 4);
        if (!Array.isArray(chunks)) {
          expect(chunks).toMatchObject({ reason: 'ImageInvalid' });
          return;
        }
        let end = 0;
        for (const chunk of chunks) {
          expect(chunk.offset).toBeGreaterThanOrEqual(end);
          expect(chunk.length).toBeGreaterThan(0);
          expect(chunk.layer).toBeLessThan(4);
          end = chunk.offset + chunk.length;
        }
        expect(end).toBeLessThanOrEqual(virtualSize);
      }),
      { numRuns: 500 },
    );
  });

  function chunksOrRefusal(...of: Parameters<typeof chunksOf>): ReturnType<typeof chunksOf> | ReasonedError {
    try {
      return chunksOf(...of);
    } catch (error) {
      if (error instanceof ReasonedError) {
        return error;
      }
      throw error;
    }
  }

  it('are few enough for a manifest, and those in memory are small enough', () => {
    for (const virtualSize of [GIB, 100 * GIB, 128 * GIB, 129 * GIB, 1024 * GIB]) {
      const chunkSize = chunkSizeFor(virtualSize);
      expect(virtualSize / chunkSize).toBeLessThanOrEqual(LAYER_LIMIT);
      expect(chunksAtOnce(chunkSize) * chunkSize).toBeLessThanOrEqual(128 * MIB);
    }
    expect([chunkSizeFor(128 * GIB), chunkSizeFor(129 * GIB)]).toEqual([16 * MIB, 64 * MIB]);
  });
});
