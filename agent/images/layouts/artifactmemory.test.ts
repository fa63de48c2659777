import { createHash, randomBytes } from 'node:crypto';
import { open, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import type { Readable } from 'node:stream';
import { zstdCompressSync } from 'node:zlib';
import { beforeEach, describe, expect, it } from 'vitest';
import { allocatedBytes } from '../../disks/diskio.ts';
import type { Descriptor, Manifest, ResolvedManifest } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import { planArtifact } from './artifact.ts';
import { publishDisk } from './publish.ts';
import type { PullPlan } from './pull.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const MIB = 1024 ** 2;
const { signal } = new AbortController();
const ABOUT = { cpu: 2, memoryBytes: 40 * MIB, key: 'b'.repeat(64), savedAt: '2026-11-30T06:00:00Z' };
const MEMORY_KEY = 'dev.berth.memory';

const digestOf = (bytes: Buffer): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

describe('an artifact with memory', () => {
  let folder: string;
  /** Content of the registry by digest. */
  let blobs: Map<string, Buffer>;
  let manifest: Manifest;
  let config: { rootfs: { diff_ids: string[] } } & Record<string, Record<string, unknown>>;
  /** Digests of the blobs that a pull fetched. */
  let fetched: string[];
  let repository: Repository;
  const shared = Buffer.alloc(16 * MIB, randomBytes(1000));

  beforeEach(async () => {
    folder = makeFolder();
    blobs = new Map();
    fetched = [];
    const upload = async ({ digest, content }: { digest: string; content: () => Buffer | Readable }) => {
      const given = content();
      blobs.set(digest, Buffer.isBuffer(given) ? given : await buffer(given));
    };
    const putManifest = async (_tag: string, _type: string, bytes: Buffer) => {
      manifest = JSON.parse(String(bytes)) as Manifest;
      return digestOf(bytes);
    };
    const blob = async ({ digest }: Descriptor) => blobs.get(digest);
    async function* stream({ digest }: Descriptor, { start, end }: { start: number; end: number }) {
      fetched.push(digest);
      yield blobs.get(digest)!.subarray(start, end);
    }
    repository = { name: 'r.example/i', upload, putManifest, blob, stream } as unknown as Repository;
    // The disk and the memory have a chunk in common. The last chunk of the memory is short, and the one before it is a hole.
    await writeFile(join(folder, 'raw'), Buffer.concat([shared, Buffer.alloc(MIB, 3)]));
    await writeFile(join(folder, 'saved-ram'), shared);
    const ram = await open(join(folder, 'saved-ram'), 'r+');
    await ram.write(Buffer.alloc(MIB, 4), 0, MIB, 39 * MIB);
    await ram.close();
    await writeFile(join(folder, 'saved-state'), randomBytes(MIB));
    const memory = { ...ABOUT, ram: join(folder, 'saved-ram'), state: join(folder, 'saved-state') };
    const disk = { path: join(folder, 'raw'), virtualSizeBytes: 17 * MIB, memory };
    let bytes = 0;
    await publishDisk({ ...disk, repository, tag: 'a' }, { signal, onBytes: (count) => (bytes += count) });
    expect(bytes).toBe(57 * MIB);
    config = JSON.parse(String(blobs.get(manifest.config.digest))) as typeof config;
  });

  /** Plans the pull of the artifact with the present `config` and `manifest`. */
  async function planned(withMemory = true): Promise<PullPlan> {
    blobs.set(manifest.config.digest, Buffer.from(JSON.stringify(config)));
    const resolved: ResolvedManifest = { digest: 'd', tagDigest: 'd', architecture: undefined, manifest };
    return (await planArtifact(repository, resolved, signal, { withMemory }))!;
  }

  async function pulled(plan: PullPlan, onBytes: (count: number) => void = () => undefined): Promise<string> {
    const pulls = join(folder, 'pull');
    await plan.run({ folder: pulls, disk: join(pulls, 'disk') }, { signal, onBytes });
    return pulls;
  }

  async function expectSaved(pulls: string): Promise<void> {
    for (const name of ['ram', 'state']) {
      expect((await readFile(join(pulls, name))).equals(await readFile(join(folder, `saved-${name}`)))).toBe(
        true,
      );
    }
    expect((await stat(join(pulls, 'disk'))).size).toBe(17 * MIB);
    expect((await readdir(pulls)).toSorted()).toEqual(['chunks.json', 'disk', 'journal', 'ram', 'state']);
  }

  it('gives the same memory with its holes, and fetches content that disk and memory share once', async () => {
    const plan = await planned();
    let bytes = 0;
    const pulls = await pulled(plan, (count) => (bytes += count));
    await expectSaved(pulls);
    expect(plan.memory).toEqual(ABOUT);
    expect(plan.roomBytes).toBe((17 + 16 + 8 + 1) * MIB);
    expect(bytes).toBe(plan.downloadBytes);
    expect(fetched).toHaveLength(manifest.layers.length);
    expect(new Set(fetched).size).toBe(4);
    expect(await allocatedBytes(join(pulls, 'ram'))).toBe(17 * MIB);
  });

  it('gives only the disk to a host that does not take the memory, and tells it of the memory', async () => {
    const plan = await planned(false);
    let bytes = 0;
    const pulls = await pulled(plan, (count) => (bytes += count));
    expect(plan.memory).toEqual(ABOUT);
    expect(plan.roomBytes).toBe(17 * MIB);
    expect(bytes).toBe(plan.downloadBytes);
    expect(fetched).toHaveLength(2);
    expect((await readdir(pulls)).toSorted()).toEqual(['chunks.json', 'disk', 'journal']);
  });

  it('is continued after an interruption, and nothing is fetched twice', async () => {
    const last = blobs.get(manifest.layers[1]!.digest)!;
    blobs.set(manifest.layers[1]!.digest, Buffer.alloc(last.length));
    await expect(pulled(await planned())).rejects.toMatchObject({ reason: 'DigestMismatch' });
    blobs.set(manifest.layers[1]!.digest, last);
    const before = fetched.length;
    await expectSaved(await pulled(await planned()));
    expect(fetched.slice(before)).toEqual([manifest.layers[1]!.digest]);
  });

  it.each<[string, Record<string, unknown>, string]>([
    ['of a later version', { version: 2 }, 'version'],
    ['with a field that nobody knows', { host: 'x' }, 'host'],
    ['without a key', { key: undefined }, 'key'],
    ['of 5 TiB', { memoryBytes: 5 * 1024 ** 4 }, 'memoryBytes'],
    ['with chunks of 1 GiB', { chunkSize: 1024 * MIB }, 'chunkSize'],
    [
      'with a chunk beyond its end',
      { map: [[3, 0]] },
      'chunk 3 of the memory is out of order or beyond the end',
    ],
    ['with a chunk in the layer of the state', { map: [[0, 3]] }, 'chunk 0 of the memory names layer 3'],
    ['without a layer for the state', { state: 4 }, 'names layer 4 for the state'],
    ['with a chunk as its state', { state: 0 }, 'names layer 0 for the state'],
    ['with a state of 1 GiB', { stateBytes: 1024 * MIB }, 'stateBytes'],
    ['with a layer too large for its state', { stateBytes: 512 }, 'the layer of its state has'],
  ])('%s is refused, also by a host that does not take the memory', async (_, wrong, message) => {
    config[MEMORY_KEY] = { ...config[MEMORY_KEY], ...wrong };
    for (const withMemory of [true, false]) {
      const refused = planned(withMemory);
      await expect(refused).rejects.toMatchObject({ reason: 'ImageInvalid' });
      await expect(refused).rejects.toThrow(message);
    }
  });

  /** Replaces the layer of the state. */
  function giveState(bytes: Buffer, packed = zstdCompressSync(bytes)): void {
    const digest = digestOf(packed);
    blobs.set(digest, packed);
    manifest.layers.splice(3, 1, { ...manifest.layers[3]!, digest, size: packed.length });
  }

  it.each<[string, () => void, string, string]>([
    ['of another content', () => giveState(Buffer.alloc(MIB)), 'ImageInvalid', 'instead of'],
    ['that unpacks to more', () => giveState(Buffer.alloc(2 * MIB)), 'ImageInvalid', 'unpacks to more than'],
    ['that unpacks to less', () => giveState(Buffer.alloc(512)), 'ImageInvalid', 'has 512 bytes'],
    [
      'that is no zstd',
      () => giveState(Buffer.alloc(0), Buffer.alloc(512, 1)),
      'ImageInvalid',
      'cannot be unpacked',
    ],
    [
      'that ends early',
      () => giveState(Buffer.alloc(0), zstdCompressSync(randomBytes(MIB)).subarray(0, 9999)),
      'ImageInvalid',
      'cannot be unpacked',
    ],
    [
      'with a wrong blob',
      () => blobs.set(manifest.layers[3]!.digest, Buffer.alloc(manifest.layers[3]!.size)),
      'DigestMismatch',
      '',
    ],
  ])('with a state %s is refused, and there is no disk', async (_, change, reason, message) => {
    change();
    const refused = pulled(await planned());
    await expect(refused).rejects.toMatchObject({ reason });
    await expect(refused).rejects.toThrow(message);
    expect(await readdir(join(folder, 'pull'))).not.toContain('disk');
  });

  it('with a chunk of another content is refused', async () => {
    config.rootfs.diff_ids[2] = digestOf(Buffer.alloc(1));
    await expect(pulled(await planned())).rejects.toMatchObject({ reason: 'ImageInvalid' });
  });
});
