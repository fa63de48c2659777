/** Files that the agent must write although guests or others have filled its disk. The test has a small disk of its own. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmdirSync } from 'node:fs';
import { appendFile, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { lockDataDirectory } from '../../../agent/processes/lock.ts';
import { keepReserve, writeWhole, writeWholeSync } from '../../../base/files.ts';
import { mountTmpfs, whyNoTmpfs } from '../../support/tmpfs.ts';
import { unless } from '../../support/unless.ts';

const DISK_MEBIBYTES = 4;
/** More than half of the reserve. */
const MOST_OF_RESERVE_BYTES = 700 * 1024;
const BLOCK = Buffer.alloc(4096);

describe('on a disk without a free block', unless(whyNoTmpfs()), () => {
  let folder: string;
  let file: string;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'berth-full-'));
    file = join(folder, 'file');
    mountTmpfs(folder, DISK_MEBIBYTES);
  });

  afterEach(() => {
    execFileSync('umount', [folder]);
    rmdirSync(folder);
  });

  async function fill(): Promise<void> {
    const grow = async (): Promise<void> => {
      await appendFile(join(folder, 'disk'), BLOCK);
      await grow();
    };
    await expect(grow()).rejects.toMatchObject({ code: 'ENOSPC' });
  }

  it('small files are written again and again if room is reserved for them', async () => {
    keepReserve(folder);
    await writeWhole(file, 'before');
    await fill();
    for (let round = 0; round < 100; round += 1) {
      await writeWhole(file, `${round}`.repeat(1000));
      writeWholeSync(`${file}-${round}`, 'new');
      await fill();
    }
    expect(await readFile(file, 'utf8')).toBe('99'.repeat(1000));
    expect((await readdir(folder)).filter((name) => name.endsWith('.tmp'))).toEqual([]);
  });

  it('a reserve that could not be made, or was used up, is made again once there is room', async () => {
    await fill();
    keepReserve(folder);
    await rm(join(folder, 'disk'));
    keepReserve(folder);
    await fill();
    writeWholeSync(file, 'after'.repeat(10_000));
    expect(await readFile(file, 'utf8')).toBe('after'.repeat(10_000));
    writeWholeSync(`${file}-large`, 'x'.repeat(MOST_OF_RESERVE_BYTES));
    expect(() => writeWholeSync(`${file}-too`, 'x'.repeat(MOST_OF_RESERVE_BYTES))).toThrow('ENOSPC');
    await rm(join(folder, 'disk'));
    keepReserve(folder);
    await fill();
    writeWholeSync(`${file}-too`, 'x'.repeat(MOST_OF_RESERVE_BYTES));
  });

  it('a new agent does not release the reserve, and takes its lock', async () => {
    keepReserve(folder);
    await fill();
    const kept = await stat(join(folder, '.reserve'));
    // The module is loaded again, like another process that knows no reserve yet.
    vi.resetModules();
    const anew = await import('../../../base/files.ts');
    anew.keepReserve(folder);
    expect(await stat(join(folder, '.reserve'))).toMatchObject({ size: kept.size, mtimeMs: kept.mtimeMs });
    lockDataDirectory(folder)();
  });

  it('the old text stays if no room is reserved', async () => {
    await writeFile(file, 'before');
    await fill();
    await expect(writeWhole(file, 'after')).rejects.toMatchObject({ code: 'ENOSPC' });
    expect(() => writeWholeSync(file, 'after')).toThrow('ENOSPC');
    expect(await readFile(file, 'utf8')).toBe('before');
  });
});
