import { mkdir, mkdtemp, readdir, readlink, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { undefinedIf, isMissing } from '../../../base/errors.ts';
import type { ResolvedManifest } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import { planArtifact } from './artifact.ts';
import { ARTIFACT_TYPE, CONFIG_TYPE, MANIFEST_TYPE } from './disklayout.ts';

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

it('a pull that cannot open its file for direct writes leaves no file open', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-artifact-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  const config = { mediaType: CONFIG_TYPE, digest: DIGEST, size: 1 };
  const manifest = { mediaType: MANIFEST_TYPE, artifactType: ARTIFACT_TYPE, config, layers: [] };
  const resolved: ResolvedManifest = {
    digest: DIGEST,
    tagDigest: DIGEST,
    architecture: undefined,
    manifest,
  };
  const blob = async () => Buffer.from(JSON.stringify(CONFIG));
  const repository = { name: 'registry.example/disk', blob } as unknown as Repository;
  const { signal } = new AbortController();
  const plan = await planArtifact(repository, resolved, signal);
  const target = { folder, disk: join(folder, 'disk') };
  // The journal of an earlier attempt keeps the content of the folder. A folder in place of the trial file makes the opening fail.
  await writeFile(join(folder, 'journal'), `${DIGEST}\n`);
  await mkdir(join(folder, 'disk.part.probe'));
  await expect(plan?.run(target, { signal, onBytes: () => undefined })).rejects.toThrow('EISDIR');
  expect(await openFiles(folder)).toEqual([]);
});
