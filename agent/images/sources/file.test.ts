import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, it, onTestFinished, vi } from 'vitest';
import { classOf } from '../../../api/v1alpha1/reasons.ts';
import { fileDigest } from '../../disks/diskio.ts';
import type { Catalog, Stored } from '../local/catalog.ts';
import { FileSource } from './file.ts';

vi.mock(import('../../disks/diskio.ts'), { spy: true });

const SECTOR_BYTES = 512;

afterEach(() => {
  vi.resetAllMocks();
});

it('a shared file that somebody still writes is asked for again, because it can become a whole disk', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-shared-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  const path = join(folder, 'disk.raw');
  await writeFile(path, Buffer.alloc(SECTOR_BYTES));
  vi.mocked(fileDigest).mockImplementationOnce(async () => {
    await writeFile(path, Buffer.alloc(2 * SECTOR_BYTES));
    return 'f'.repeat(64);
  });
  const catalog = { get: () => undefined, add: () => ({}) as Stored } as unknown as Catalog;
  const source = new FileSource(catalog, folder, undefined);
  const request = {
    path: 'disk.raw',
    roots: [folder],
    sha256: undefined,
    format: 'Auto',
    architecture: 'amd64',
    signal: new AbortController().signal,
    onProgress: () => undefined,
    holding: async (_id: string, work: () => Promise<Stored>) => await work(),
  } as const;
  await expect(source.ensure(request)).rejects.toMatchObject({
    reason: 'ImageFetchFailed',
    message: expect.stringContaining('changed while it was read') as string,
  });
  expect(classOf('ImageFetchFailed', 'Image')).toBe('passing');
  await expect(source.ensure(request)).resolves.toBeDefined();
});
