import { once } from 'node:events';
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { DiskError } from '../../disks/disk.ts';
import { Catalog, type CatalogEntry } from './catalog.ts';
import { Holders } from './holders.ts';
import { type Import, Importing } from './importing.ts';
import type { ImageFormat } from './inspect.ts';
import { fileId, StoreLayout } from './layout.ts';
import { imageMetrics } from './metrics.ts';
import { Space } from './space.ts';
import type { SpaceLimits } from './spacemeter.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const DIGEST = 'a'.repeat(64);
const KEY = `${DIGEST} source`;
const DISK = Buffer.alloc(512, 1);

describe('an import', () => {
  let folder: string;
  let layout: StoreLayout;
  let space: Space;
  /** Limits of the disk space. A test can change them while the import runs. */
  let limits: SpaceLimits;
  let importing: Importing;
  /** Number of times that the disk was fetched. */
  let fetches: number;

  beforeEach(async () => {
    folder = makeFolder();
    fetches = 0;
    layout = new StoreLayout(folder);
    await layout.prepare();
    const catalog = new Catalog(layout, new Holders(), pino({ level: 'silent' }));
    const logger = pino({ level: 'silent' });
    const options = { layout, catalog, logger, minimumFree: 0, onEviction: () => undefined };
    limits = options;
    space = new Space(options);
    const metrics = imageMetrics(new Registry(), { used: () => space.used(), images: () => 0 });
    importing = new Importing({ layout, catalog, space, metrics, reader: undefined });
  });

  const waiting = (format: ImageFormat = 'Auto') => ({
    signal: new AbortController().signal,
    onProgress: () => undefined,
    onWait: () => undefined,
    tenant: 'team',
    format,
  });

  function wanted(run: Import['run']): Import {
    const metadata = { digest: `sha256:${DIGEST}`, architecture: 'amd64' as const };
    return { id: fileId(DIGEST), what: 'a disk', roomBytes: DISK.length, metadata, run };
  }

  async function fetching(format?: ImageFormat): Promise<CatalogEntry> {
    return await importing.ensure(KEY, waiting(format), async () =>
      wanted(async ({ disk }) => {
        fetches += 1;
        await writeFile(disk, DISK);
      }),
    );
  }

  async function refused(): Promise<CatalogEntry> {
    return await importing.ensure(KEY, waiting(), async () => {
      await delay(1);
      throw new ReasonedError('ImageArchitectureMismatch', 'an image for amd64, and the machine is arm64');
    });
  }

  it('is made once for all callers at the same time', async () => {
    const [one, other] = await Promise.all([fetching(), fetching()]);
    expect(one).toBe(other);
    expect(fetches).toBe(1);
    expect(await readFile(join(folder, 'images', one.id, 'disk'))).toEqual(DISK);
  });

  it('with memory has read-only files beside the disk, which count and which an agent finds after a restart', async () => {
    const memory = { cpu: 2, memoryBytes: 4096, key: 'b'.repeat(64), savedAt: '2026-11-30T06:00:00Z' };
    const { id, metadata } = await importing.ensure(KEY, waiting(), async () => {
      const planned = wanted(async ({ disk }) => {
        await writeFile(disk, DISK);
        await writeFile(join(dirname(disk), 'ram'), Buffer.alloc(4096, 1));
        await writeFile(join(dirname(disk), 'state'), Buffer.alloc(4096, 2));
      });
      return { ...planned, metadata: { ...planned.metadata, memory } };
    });
    const again = new Catalog(new StoreLayout(folder), new Holders(), pino({ level: 'silent' }));
    await again.load();
    const base = again.baseOf(again.get(id)!);
    const [ram, state] = ['ram', 'state'].map((name) => join(folder, 'images', id, name));
    expect(base.memory).toEqual({ ...memory, ram, state });
    const files = await Promise.all([base.path, ram!, state!].map(async (path) => await stat(path)));
    expect(files.map(({ mode }) => mode & 0o777)).toEqual([0o440, 0o400, 0o400]);
    expect(metadata.sizeBytes).toBe(files.reduce((sum, { blocks }) => sum + blocks * 512, 0));
  });

  it('succeeds even if another caller at the same time states a wrong format', async () => {
    const wrong = fetching('QCOW2');
    const [own, raw] = await Promise.all([
      fetching(),
      fetching('Raw'),
      expect(wrong).rejects.toThrow('qcow2'),
    ]);
    expect(own).toBe(raw);
    expect(await readFile(join(folder, 'images', own.id, 'disk'))).toEqual(DISK);
    expect(await readdir(join(folder, 'images', 'partial'))).toEqual([]);
  });

  it('succeeds even if many earlier callers were refused with their credentials', async () => {
    const others = Array.from({ length: 5 }, refused);
    const own = fetching();
    const ends = await Promise.allSettled([...others, own]);
    expect(ends.map(({ status }) => status)).toEqual([...others.map(() => 'rejected'), 'fulfilled']);
    expect(fetches).toBe(1);
  });

  describe('keeps its files when the disk becomes full', () => {
    async function fillDisk(): Promise<void> {
      limits.minimumFree = Number.MAX_SAFE_INTEGER;
      await space.relieve();
    }

    it('after its fetch', async () => {
      const finish = layout.finish.bind(layout);
      vi.spyOn(layout, 'finish').mockImplementation(async (...all) => {
        await fillDisk();
        await finish(...all);
      });
      const { id } = await fetching();
      expect(await readFile(join(folder, 'images', id, 'disk'))).toEqual(DISK);
    });

    it('and an earlier agent ended before it moved the fetched disk', async () => {
      const place = vi.spyOn(layout, 'place').mockImplementationOnce(() => {
        throw new Error('killed');
      });
      await expect(fetching()).rejects.toThrow('killed');
      place.mockRestore();
      const finished = layout.finished.bind(layout);
      vi.spyOn(layout, 'finished').mockImplementation(async (partial) => {
        const metadata = await finished(partial);
        await fillDisk();
        return metadata;
      });
      const { id } = await fetching();
      expect(await readFile(join(folder, 'images', id, 'disk'))).toEqual(DISK);
      expect(fetches).toBe(1);
    });
  });

  it('of broken bytes is ImageInvalid, and leaves nothing to continue', async () => {
    const broken = importing.ensure(KEY, waiting(), async () =>
      wanted(async ({ disk }) => {
        await writeFile(disk, DISK);
        throw new DiskError('invalid', 'it ends in the middle');
      }),
    );
    const message = 'it ends in the middle';
    await expect(broken).rejects.toMatchObject({ name: 'ReasonedError', reason: 'ImageInvalid', message });
    expect(await readdir(join(folder, 'images', 'partial'))).toEqual([]);
    expect((await fetching()).id).toBe(fileId(DIGEST));
    expect(fetches).toBe(1);
  });

  describe('of a namespace that fetches many images from slow sources', () => {
    const end = new AbortController();
    const waits: string[] = [];
    let running: number;

    /** Fetches an image of namespace `tenant` from a source that sends nothing. */
    async function stuck(source: string, own = end.signal): Promise<CatalogEntry> {
      const asking = {
        ...waiting(),
        tenant: 'greedy',
        signal: own,
        onWait: (reason: string) => void waits.push(reason),
      };
      return await importing.ensure(source, asking, async () =>
        wanted(async (_target, { signal }) => {
          running += 1;
          await once(signal, 'abort');
          signal.throwIfAborted();
        }),
      );
    }

    it('keeps a place for each import that goes on for others after its first caller has left', async () => {
      running = 0;
      const [first, others] = [new AbortController(), new AbortController()];
      const sources = Array.from({ length: 5 }, (_, index) => `shared ${index}`);
      const begun = sources.map((source) => stuck(source, first.signal));
      await vi.waitFor(() => expect(running).toBe(5), { timeout: 30_000 });
      const joined = sources.map((source) => stuck(source, others.signal));
      first.abort(new Error('gone'));
      await Promise.allSettled(begun);
      const more = stuck('one more', others.signal);
      await fetching();
      expect(running).toBe(5);
      others.abort(new Error('gone'));
      await Promise.allSettled([...joined, more]);
      expect(running).toBe(5);
    });

    it('leaves a place to others, also for an image that it waits for itself', async () => {
      running = 0;
      const sources = Array.from({ length: 20 }, (_, index) => `slow ${index}`);
      const all = [...sources, KEY].map((source) => stuck(source));
      await vi.waitFor(() => expect(running).toBe(5), { timeout: 30_000 });
      expect(new Set(waits)).toEqual(
        new Set([
          'The host already has 5 fetches of images of namespace greedy, which is the limit for one namespace',
        ]),
      );
      await fetching();
      expect(fetches).toBe(1);
      expect(running).toBe(5);
      end.abort(new Error('gone'));
      const ends = await Promise.allSettled(all);
      expect(ends.every(({ status }) => status === 'rejected')).toBe(true);
      expect(running).toBe(5);
    });
  });
});
