import { mkdir, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, it, onTestFinished, vi } from 'vitest';
import type { Catalog } from './catalog.ts';
import { StoreLayout } from './layout.ts';
import { Space } from './space.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const MEBIBYTE = 1024 ** 2;
const WAIT = { timeout: 30_000 };
const logger = pino({ level: 'silent' });

async function prepared(): Promise<{ data: string; layout: StoreLayout }> {
  const data = makeFolder();
  const layout = new StoreLayout(data);
  await layout.prepare();
  return { data, layout };
}

it('the budget is for images: the copy of a task needs none of it, and takes none of it', async () => {
  const { data, layout } = await prepared();
  const held = [{ metadata: { tenants: [], sizeBytes: 10 * MEBIBYTE } }];
  const catalog = { all: () => held, evictable: () => [], kept: () => [] } as unknown as Catalog;
  const onEviction = (): void => undefined;
  const space = new Space({ layout, catalog, logger, budget: 15 * MEBIBYTE, minimumFree: 0, onEviction });
  const { signal } = new AbortController();
  const within = async (folder: string, mebibytes: number, work = async () => 'done'): Promise<string> =>
    await space.within({ folder, tenant: 'team', bytes: mebibytes * MEBIBYTE }, signal, work);
  const image = layout.partial('image').folder;
  const whileCopying = async (): Promise<string> => await within(image, 5);
  expect(await within(join(data, 'tasks', 'uid'), 20, whileCopying)).toBe('done');
  const whileFetching = async (): Promise<string> => await within(layout.partial('other').folder, 5);
  const full = { reason: 'DiskFull' };
  await expect(within(image, 4, whileFetching)).rejects.toMatchObject(full);
  await expect(within(image, 6)).rejects.toMatchObject(full);
});

it('work whose bytes the host knows has all of them reserved before it begins, and its message names it', async () => {
  const { layout } = await prepared();
  const catalog = { all: () => [], evictable: () => [], kept: () => [] } as unknown as Catalog;
  const options = { layout, catalog, logger, onEviction: () => undefined };
  const space = new Space({ ...options, budget: 15 * MEBIBYTE, minimumFree: 0 });
  const within = async (name: string, isAtOnce: boolean, work = async () => 'done'): Promise<string> => {
    const { folder } = layout.partial(name);
    const need = { folder, tenant: 'team', bytes: 10 * MEBIBYTE, what: 'The memory of the VM', isAtOnce };
    return await space.within(need, new AbortController().signal, work);
  };
  const full = {
    reason: 'DiskFull',
    message: 'The memory of the VM needs 10485760 bytes, and this host has too little disk space for it',
  };
  await expect(within('one', true, async () => await within('two', true))).rejects.toMatchObject(full);
  await expect(within('one', true, async () => await within('fetch', false))).rejects.toMatchObject(full);
  expect(await within('fetch', false, async () => await within('other', false))).toBe('done');
  expect(await within('one', true)).toBe('done');
});

it('bytes that the work writes in its other folder are not reserved a second time', async () => {
  const { layout, data } = await prepared();
  const catalog = { all: () => [], evictable: () => [], kept: () => [] } as unknown as Catalog;
  const options = { layout, catalog, logger, onEviction: () => undefined };
  const space = new Space({ ...options, budget: 15 * MEBIBYTE, minimumFree: 0 });
  const beside = join(data, 'image-memory');
  await mkdir(beside);
  const within = async (name: string, work: () => Promise<unknown>): Promise<unknown> => {
    const { folder } = layout.partial(name);
    const need = { folder, beside, tenant: 'team', bytes: 10 * MEBIBYTE, isAtOnce: true };
    return await space.within(need, new AbortController().signal, work);
  };
  const other = async (): Promise<unknown> => {
    const need = { folder: layout.partial('other').folder, tenant: 'team', bytes: 10 * MEBIBYTE };
    return await space.within(need, new AbortController().signal, async () => 'done');
  };
  const writeFirst = async (): Promise<unknown> => {
    await writeFile(join(beside, 'stream'), Buffer.alloc(10 * MEBIBYTE, 1));
    return await other();
  };
  await expect(within('one', other)).rejects.toMatchObject({ reason: 'DiskFull' });
  expect(await within('one', writeFirst)).toBe('done');
});

it('the budget ends a fetch that takes more than it reserved, if no image can be removed, and no other fetch', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  onTestFinished(() => void vi.useRealTimers());
  const { layout } = await prepared();
  const images = [{ metadata: { tenants: [], sizeBytes: 10 * MEBIBYTE } }];
  const catalog = {
    all: () => images,
    evictable: () => images,
    kept: () => [],
    discard: async () => void images.pop(),
  };
  const options = { layout, logger, catalog: catalog as unknown as Catalog, onEviction: () => undefined };
  const space = new Space({ ...options, budget: 15 * MEBIBYTE, minimumFree: 0 });
  const aborted = new Set<string>();
  const end = new AbortController();

  async function fetching(name: string, mebibytes: number): Promise<void> {
    const { folder } = layout.partial(name);
    await space.within(
      { folder, tenant: 'team', bytes: mebibytes * MEBIBYTE },
      end.signal,
      async ({ signal }) => {
        await layout.beginPartial(folder);
        await new Promise((_resolve, reject) => {
          signal.addEventListener('abort', () => {
            aborted.add(name);
            reject(signal.reason as Error);
          });
        });
      },
    );
  }

  async function afterUnpacking(mebibytes: number): Promise<string[]> {
    await writeFile(layout.partial('small').disk, Buffer.alloc(mebibytes * MEBIBYTE, 1));
    await vi.advanceTimersByTimeAsync(1000);
    // This call waits for the checks that are under way.
    await space.relieve();
    return [...aborted];
  }

  const fetches = Promise.allSettled([fetching('other', 2), fetching('small', 1)]);
  await vi.waitUntil(async () => (await layout.partials()).length === 2, WAIT);
  expect(await afterUnpacking(2)).toEqual([]);
  expect(images).toHaveLength(1);
  expect(await afterUnpacking(6)).toEqual([]);
  expect(images).toHaveLength(0);
  expect(await afterUnpacking(16)).toEqual(['small']);
  end.abort(new Error('the test is over'));
  expect(await fetches).toMatchObject([
    { reason: { message: 'the test is over' } },
    {
      reason: {
        reason: 'DiskFull',
        message:
          'The image takes more than the expected 1048576 bytes, and this host has too little disk space for images',
      },
    },
  ]);
});

it('announced bytes remove no image: the images go when the bytes arrive, and as many as these bytes need', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  onTestFinished(() => void vi.useRealTimers());
  const { layout } = await prepared();
  const images = Array.from({ length: 28 }, () => ({ metadata: { tenants: [], sizeBytes: MEBIBYTE } }));
  const catalog = {
    all: () => images,
    evictable: () => [...images],
    kept: () => [],
    discard: async () => void images.pop(),
  };
  const options = { layout, logger, catalog: catalog as unknown as Catalog, onEviction: () => undefined };
  const space = new Space({ ...options, budget: 30 * MEBIBYTE, minimumFree: 0 });
  const { signal } = new AbortController();
  const { folder, disk } = layout.partial('large');
  const left: number[] = [];

  async function arrive(mebibytes: number): Promise<void> {
    await writeFile(disk, Buffer.alloc(mebibytes * MEBIBYTE, 1));
    await vi.advanceTimersByTimeAsync(1000);
    // This call waits for the checks that are under way.
    await space.relieve();
    left.push(images.length);
  }

  await space.within({ folder, tenant: 'team', bytes: 29 * MEBIBYTE }, signal, async () => {
    await layout.beginPartial(folder);
    await arrive(0);
    await arrive(4);
    // The rest arrives before the next check.
    await writeFile(disk, Buffer.alloc(10 * MEBIBYTE, 1));
  });
  expect([...left, images.length]).toEqual([28, 22, 20]);
  const large = space.within(
    { folder: layout.partial('other').folder, tenant: 'team', bytes: 31 * MEBIBYTE },
    signal,
    async () => 0,
  );
  const message = 'The image needs 32505856 bytes, and this host has too little disk space for it';
  await expect(large).rejects.toMatchObject({ reason: 'DiskFull', message });
  expect(images).toHaveLength(20);
});

it('images that nobody needs go until disk pressure can end, because a host with disk pressure gets no VMs', async () => {
  const { layout } = await prepared();
  const { bavail, bsize } = await statfs(layout.root);
  const images = [{ metadata: { tenants: [], sizeBytes: MEBIBYTE } }];
  const discard = async (): Promise<void> => void images.pop();
  const catalog = { sweep: async () => undefined, evictable: () => images, discard } as unknown as Catalog;
  // More than the reserve is free, but less than a quarter more.
  const minimumFree = (bavail * bsize) / 1.1;
  await new Space({ layout, catalog, logger, minimumFree, onEviction: () => undefined }).tidy();
  expect(images).toEqual([]);
});

it('the entries of a namespace keep more than its share only while no other namespace needs the space', async () => {
  const { layout } = await prepared();
  const kept = [1, 2].map(() => ({ metadata: { tenants: ['greedy'], sizeBytes: 4 * MEBIBYTE } }));
  const shared = { metadata: { tenants: ['greedy', 'other'], sizeBytes: 2 * MEBIBYTE } };
  const images = [shared, ...kept];
  const catalog = {
    all: () => images,
    evictable: () => [],
    kept: () => [...images],
    discard: async (one: typeof shared) => void images.splice(images.indexOf(one), 1),
  } as unknown as Catalog;
  const options = { layout, logger, catalog, onEviction: () => undefined };
  const space = new Space({ ...options, budget: 10 * MEBIBYTE, minimumFree: 0 });
  const fetched = async (tenant: string): Promise<string> => {
    const { folder } = layout.partial(tenant);
    return await space.within(
      { folder, tenant, bytes: 3 * MEBIBYTE },
      AbortSignal.any([]),
      async () => 'done',
    );
  };
  await expect(fetched('greedy')).rejects.toMatchObject({ reason: 'DiskFull' });
  expect(images).toHaveLength(3);
  expect(await fetched('modest')).toBe('done');
  expect(images).toEqual([shared, kept[1]]);
});
