/** Agents that die at each step of a pull of an image with memory. */
import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import type { Readable } from 'node:stream';
import { expect, test, vi } from 'vitest';
import type { Descriptor, Manifest, ResolvedManifest } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import { planArtifact } from './artifact.ts';
import { publishDisk } from './publish.ts';
import type { PullPlan } from './pull.ts';

const { Life, lives, stepping } = await vi.hoisted(async () => await import('../../../test/worlds/lives.ts'));
vi.mock('node:fs/promises', async (importOriginal) => stepping(await importOriginal<object>()));

/** Folder in memory, because a pull writes its files to the disk at once. */
const PARENT = '/dev/shm';
/** Limit on a busy machine. On an idle one, the test takes a second. */
const TEST_MILLISECONDS = 300_000;
/** Number of steps that a pull has at least. */
const LEAST_STEPS = 20;
const MIB = 1024 ** 2;
const ABOUT = { cpu: 2, memoryBytes: MIB, key: 'b'.repeat(64), savedAt: '2026-11-30T06:00:00Z' };
const { signal } = new AbortController();

const digestOf = (bytes: Buffer): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

/** Publishes an image with memory. Returns the plan of its pull. */
async function publish(files: Readonly<Record<'disk' | 'ram' | 'state', string>>): Promise<PullPlan> {
  const blobs = new Map<string, Buffer>();
  let manifest: Manifest | undefined;
  const repository = {
    name: 'r.example/i',
    upload: async ({ digest, content }: { digest: string; content: () => Buffer | Readable }) => {
      const given = content();
      blobs.set(digest, Buffer.isBuffer(given) ? given : await buffer(given));
    },
    putManifest: async (_tag: string, _type: string, bytes: Buffer) => {
      manifest = JSON.parse(String(bytes)) as Manifest;
      return digestOf(bytes);
    },
    blob: async ({ digest }: Descriptor) => blobs.get(digest),
    async *stream({ digest }: Descriptor, { start, end }: { start: number; end: number }) {
      lives.getStore()?.step();
      yield blobs.get(digest)!.subarray(start, end);
    },
  } as unknown as Repository;
  const memory = { ...ABOUT, ram: files.ram, state: files.state };
  const disk = { path: files.disk, virtualSizeBytes: MIB, memory };
  await publishDisk({ ...disk, repository, tag: 'a' }, { signal, onBytes: () => undefined });
  const resolved = { digest: 'd', tagDigest: 'd', architecture: undefined, manifest } as ResolvedManifest;
  return (await planArtifact(repository, resolved, signal, { withMemory: true }))!;
}

test(
  'an agent that dies at any step of a pull: the disk is not there before all is, and the next pull completes it',
  async () => {
    const folder = mkdtempSync(join(PARENT, 'berth-pull-'));
    try {
      const files = {
        disk: join(folder, 'raw'),
        ram: join(folder, 'saved-ram'),
        state: join(folder, 'saved-state'),
      };
      Object.values(files).forEach((path) => writeFileSync(path, randomBytes(MIB)));
      const plan = await publish(files);
      const pull = async (pulls: string): Promise<void> =>
        await plan.run({ folder: pulls, disk: join(pulls, 'disk') }, { signal, onBytes: () => undefined });
      let last = 0;
      for (let hasDied = true; hasDied; ) {
        last += 1;
        const pulls = join(folder, `pull-${last}`);
        const life = new Life(last);
        const done = lives
          .run(life, async () => await pull(pulls))
          .catch((error: unknown) => {
            expect(life.isOver, `it failed with ${String(error)}`).toBe(true);
          });
        await Promise.race([done, life.ended]);
        hasDied = life.isOver;
        life.end();
        await done;
        if (readdirSync(folder).includes(`pull-${last}`) && readdirSync(pulls).includes('disk')) {
          expectWhole(pulls, files);
        }
        await pull(pulls);
        expectWhole(pulls, files);
        expect(readdirSync(pulls).toSorted()).toEqual(['chunks.json', 'disk', 'journal', 'ram', 'state']);
        rmSync(pulls, { recursive: true });
      }
      expect(last).toBeGreaterThan(LEAST_STEPS);
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
  TEST_MILLISECONDS,
);

function expectWhole(pulls: string, files: Readonly<Record<'disk' | 'ram' | 'state', string>>): void {
  for (const name of ['disk', 'ram', 'state'] as const) {
    expect(readFileSync(join(pulls, name)).equals(readFileSync(files[name])), `the ${name}`).toBe(true);
  }
}
