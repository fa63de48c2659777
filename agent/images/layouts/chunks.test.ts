import { createHash } from 'node:crypto';
import { open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, expect, it } from 'vitest';
import { type Chunk, copyLocal, readChunkTable, writeChunkTable } from './chunks.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const CONTENT = Buffer.from('content that another disk has too');
const { signal } = new AbortController();
let folder: string;

beforeEach(() => {
  folder = makeFolder();
});

/** Copies the content from `source`, and returns the result and the bytes of the target. */
async function copy(source: string): Promise<[boolean, string]> {
  const target = join(folder, 'target');
  await writeFile(target, '');
  const file = await open(target, 'r+');
  try {
    const rawDigest = `sha256:${createHash('sha256').update(CONTENT).digest('hex')}`;
    const to = { file, fresh: true, position: 0 };
    const isCopied = await copyLocal(
      { path: source, offset: 0 },
      { rawDigest, length: CONTENT.length },
      to,
      signal,
    );
    return [isCopied, await readFile(target, 'utf8')];
  } finally {
    await file.close();
  }
}

it('copies content with the right digest', async () => {
  const source = join(folder, 'source');
  await writeFile(source, CONTENT);
  expect(await copy(source)).toEqual([true, CONTENT.toString()]);
});

it.each([
  ['has other bytes', CONTENT.toString().toUpperCase()],
  ['is too short', 'content'],
])('tells that a source that %s does not have the content', async (_, text) => {
  const source = join(folder, 'source');
  await writeFile(source, text);
  expect((await copy(source))[0]).toBe(false);
});

it('tells that a source that was removed does not have the content', async () => {
  expect(await copy(join(folder, 'none'))).toEqual([false, '']);
});

it('names only the first place of content that a disk has many times, so that a small image has a small table', async () => {
  const chunkAt = (offset: number, content: string): Chunk => {
    return {
      offset,
      length: 512,
      rawDigest: `sha256:${content}`,
      digest: `sha256:zstd-${content}`,
      size: 30,
    };
  };
  const target = { folder, disk: join(folder, 'disk') };
  await writeChunkTable(target, [chunkAt(0, 'a'), chunkAt(512, 'b'), chunkAt(1024, 'a'), chunkAt(1536, 'a')]);
  expect(await readChunkTable(folder)).toEqual([chunkAt(0, 'a'), chunkAt(512, 'b')]);
});
