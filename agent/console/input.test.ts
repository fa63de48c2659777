import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { logTail } from './input.ts';
import { segmentName } from './logwriter.ts';
import { makeFolder } from '../../test/support/folder.ts';

it('the last part of a log over two files has at most the given number of bytes, also with characters of several bytes', async () => {
  const folder = makeFolder();
  await writeFile(join(folder, segmentName('serial', 0)), 'äää');
  await writeFile(join(folder, segmentName('serial', 6)), 'ööö');
  expect(await logTail(folder, 'serial', 8)).toBe('äööö');
  expect(await logTail(folder, 'serial', 100)).toBe('äääööö');
  expect(await logTail(folder, 'serial', 100, 4)).toBe('äööö');
});
