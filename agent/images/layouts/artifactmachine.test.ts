import { writeFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { makeFolder } from '../../../test/support/folder.ts';
import type { Repository } from '../oci/repository.ts';
import { ARTIFACT_TYPE, CONFIG_TYPE, MANIFEST_TYPE, planArtifact } from './artifact.ts';
import { MACHINE_KEY, machineBeside, machineIn, readMachine } from './artifactmachine.ts';
import { MEMORY_KEY } from './artifactmemory.ts';

const DIGEST = `sha256:${'1'.repeat(64)}`;
const CHUNKED = { version: 1, chunkSize: 512, map: [] };
const MACHINE = { ...CHUNKED, config: '{}', variablesBytes: 512 };

/** Plans the pull of an artifact with these values in its configuration. */
async function planOf(more: object) {
  const document = {
    architecture: 'arm64',
    os: 'MacOS',
    rootfs: { type: 'layers', diff_ids: [] },
    'dev.berth.disk': { ...CHUNKED, virtualSize: 512 },
    ...more,
  };
  const blob = async () => await Promise.resolve(Buffer.from(JSON.stringify(document)));
  const config = { mediaType: CONFIG_TYPE, digest: DIGEST, size: 1 };
  const manifest = { mediaType: MANIFEST_TYPE, artifactType: ARTIFACT_TYPE, config, layers: [] };
  const resolved = { digest: DIGEST, tagDigest: DIGEST, architecture: undefined, manifest };
  const repository = { name: 'registry.example/disk', blob } as unknown as Repository;
  return await planArtifact(repository, resolved, new AbortController().signal);
}

describe('the machine of an artifact', () => {
  it('needs no layer if its variables are zeros', async () => {
    expect(await planOf({ [MACHINE_KEY]: MACHINE })).toMatchObject({ downloadBytes: 0, roomBytes: 0 });
  });

  it.each([
    ['a configuration that is too long', { [MACHINE_KEY]: { ...MACHINE, config: 'x'.repeat(2 ** 16 + 1) } }],
    ['variables that are too large', { [MACHINE_KEY]: { ...MACHINE, variablesBytes: 2 ** 40 } }],
    ['a chunk of a layer that is missing', { [MACHINE_KEY]: { ...MACHINE, map: [[0, 0]] } }],
    ['a chunk beyond its end', { [MACHINE_KEY]: { ...MACHINE, map: [[1, 0]] } }],
    ['unknown fields', { [MACHINE_KEY]: { ...MACHINE, path: '../../etc' } }],
    [
      'memory besides',
      {
        [MACHINE_KEY]: MACHINE,
        [MEMORY_KEY]: {
          ...CHUNKED,
          cpu: 1,
          memoryBytes: 512,
          key: 'b'.repeat(64),
          savedAt: '2026-11-30T06:00:00Z',
          state: 0,
          stateBytes: 1,
        },
      },
    ],
  ])('is refused with %s', async (_, more) => {
    await expect(planOf(more)).rejects.toMatchObject({ reason: 'ImageInvalid' });
  });

  it('is not published if its configuration is larger than those of machines', async () => {
    const files = machineIn(makeFolder());
    await writeFile(files.variables, 'variables');
    expect(await machineBeside(files.config)).toBeUndefined();
    await writeFile(files.config, 'x'.repeat(2 ** 16 + 1));
    expect(await machineBeside(files.config)).toEqual(files);
    await expect(readMachine(files)).rejects.toMatchObject({ reason: 'ImageInvalid' });
  });
});
