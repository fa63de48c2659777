import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import type { Catalog } from './catalog.ts';
import { Layout } from './layout.ts';
import { Space } from './space.ts';

const MEBIBYTE = 1024 ** 2;

it('the budget is for images: the copy of a task needs none of it, and takes none of it', async () => {
  const data = await mkdtemp(join(tmpdir(), 'berth-space-'));
  onTestFinished(async () => await rm(data, { recursive: true }));
  const layout = new Layout(data);
  await layout.prepare();
  const held = [{ metadata: { sizeBytes: 10 * MEBIBYTE } }];
  const catalog = { all: () => held, evictable: () => [] } as unknown as Catalog;
  const onEviction = (): void => undefined;
  const space = new Space({ layout, catalog, budget: 15 * MEBIBYTE, minimumFree: 0, onEviction });
  const { signal } = new AbortController();
  const within = async (folder: string, mebibytes: number, work = async () => 'done'): Promise<string> =>
    await space.within({ folder, bytes: mebibytes * MEBIBYTE }, signal, work);
  const image = layout.partial('image').folder;
  const whileCopying = async (): Promise<string> => await within(image, 5);
  expect(await within(join(data, 'tasks', 'uid'), 20, whileCopying)).toBe('done');
  const whileFetching = async (): Promise<string> => await within(layout.partial('other').folder, 2);
  const full = { reason: 'DiskFull' };
  await expect(within(image, 4, whileFetching)).rejects.toMatchObject(full);
  await expect(within(image, 6)).rejects.toMatchObject(full);
});
