import { appendFile, open, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { type Journal, makeDisk, openJournal } from './journal.ts';
import { makeFolder } from '../../../test/support/folder.ts';

describe('the journal of a pull', () => {
  let root: string;
  let folder: string;

  beforeEach(() => {
    root = makeFolder();
    folder = join(root, 'folder');
  });

  async function write(journal: Journal, ...entries: string[]): Promise<void> {
    const file = await open(join(folder, 'data'), 'a');
    await Promise.all(entries.map((entry) => journal.add(entry, file)));
    await file.close();
    await journal.close();
  }

  it('has the finished chunks for every later agent', async () => {
    const first = await openJournal(folder, 'key');
    expect(first.fresh).toBe(true);
    await write(first, '1', '2', '17');
    await write(await openJournal(folder, 'key'), '3');
    const third = await openJournal(folder, 'key');
    expect(third.fresh).toBe(false);
    expect(['1', '2', '3', '17', '4', '7'].map((entry) => third.has(entry))).toEqual([
      ...Array<boolean>(4).fill(true),
      false,
      false,
    ]);
    await third.close();
  });

  it('makes no entry from a cut entry and the next one', async () => {
    await write(await openJournal(folder, 'key'), '5');
    await appendFile(join(folder, 'journal'), '1');
    await write(await openJournal(folder, 'key'), '7');
    expect(await readFile(join(folder, 'journal'), 'utf8')).toBe('key\n5\n7\n');
  });

  it.each([
    ['of another manifest', 'other\n1\n'],
    ['cut in its first line', 'ke'],
    ['empty', ''],
  ])('%s is started again, in an empty folder', async (_what, content) => {
    await write(await openJournal(folder, 'key'), '1');
    await writeFile(join(folder, 'journal'), content);
    const journal = await openJournal(folder, 'key');
    expect(journal).toMatchObject({ fresh: true });
    expect(journal.has('1')).toBe(false);
    await journal.close();
    expect(await readdir(folder)).toEqual(['journal']);
  });

  it('does not count a chunk as finished if the entry could not be written', async () => {
    const journal = await openJournal(folder, 'key');
    const file = await open(join(folder, 'data'), 'a');
    await file.close();
    await expect(journal.add('1', file)).rejects.toThrow('closed');
    expect(journal.has('1')).toBe(false);
    await journal.close();
  });

  it('does not make the disk again if it cannot find out whether the disk exists', async () => {
    await write(await openJournal(folder, 'key'), '1');
    const disk = join(folder, 'disk');
    await symlink(disk, disk);
    const make = vi.fn(() => writeFile(`${disk}.part`, ''));
    await expect(makeDisk({ folder, disk }, 'key', make)).rejects.toThrow('ELOOP');
    expect(make).not.toHaveBeenCalled();
  });
});
