import { mkdir, mkdtemp, readdir, readlink, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { undefinedIf, isMissing } from '../../../base/errors.ts';
import type { Descriptor, ResolvedManifest } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import { planArtifact } from './artifact.ts';
import {
  ARTIFACT_TYPE,
  CHUNK_LIMIT,
  CHUNK_TYPE,
  CONFIG_TYPE,
  LAYER_LIMIT,
  MANIFEST_TYPE,
} from './disklayout.ts';

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
  const folder = await mkdtemp(join(tmpdir(), 'berth-artifact-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
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
