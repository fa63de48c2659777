import { createHash, randomBytes } from 'node:crypto';
import { open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, expect, it } from 'vitest';
import { copyHashed } from './sparse.ts';
import { makeFolder } from '../../test/support/folder.ts';

const MEBIBYTE = 1024 ** 2;

let folder: string;

beforeEach(() => {
  folder = makeFolder();
});

it.each([
  ['nothing', 0, 0],
  ['one byte', 1, 1],
  ['exactly one piece', 512 * 1024, 512 * 1024],
  ['more pieces than are in memory', 20 * MEBIBYTE + 1, 20 * MEBIBYTE + 1],
  ['the beginning of a longer file', 3 * MEBIBYTE, 2 * MEBIBYTE + 5],
  ['a file that has become shorter, in the middle of a piece', 2 * MEBIBYTE + 5, 20 * MEBIBYTE],
  ['a file that has become shorter, at the end of a piece', 2 * MEBIBYTE, 20 * MEBIBYTE],
])('copies %s', async (_, length, bytes) => {
  const content = randomBytes(length);
  await writeFile(join(folder, 'source'), content);
  const source = await open(join(folder, 'source'));
  let reported = 0;
  const onBytes = (count: number): void => {
    reported += count;
  };
  const copied = await copyHashed(source, join(folder, 'copy'), {
    bytes,
    signal: new AbortController().signal,
    onBytes,
  });
  await source.close();
  const expected = content.subarray(0, bytes);
  expect(expected.equals(await readFile(join(folder, 'copy')))).toBe(true);
  const sha256 = createHash('sha256').update(expected).digest('hex');
  expect({ ...copied, reported }).toEqual({ sha256, bytes: expected.length, reported: expected.length });
});
