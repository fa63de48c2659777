import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { run } from '../../base/exec.ts';
import { folderBytes } from './diskio.ts';
import { makeFolder } from '../../test/support/folder.ts';

const COMMAND = { timeoutMilliseconds: 30_000 };
const MEBIBYTE = 1024 * 1024;

let folder: string;

beforeEach(() => {
  folder = makeFolder();
});

afterEach(async () => void (await run('rm', ['-rf', folder], COMMAND)));

describe('the bytes of a folder', () => {
  it('are those of its files, also in other folders, without holes', async () => {
    await mkdir(join(folder, 'one', 'two'), { recursive: true });
    await writeFile(join(folder, 'one', 'two', 'file'), Buffer.alloc(MEBIBYTE, 1));
    await run('truncate', ['-s', '1T', join(folder, 'hole')], COMMAND);
    const bytes = await folderBytes(folder);
    expect(bytes).toBeGreaterThanOrEqual(MEBIBYTE);
    expect(bytes).toBeLessThan(2 * MEBIBYTE);
    expect(await folderBytes(join(folder, 'nothing'))).toBe(0);
  });

  it('are those of a disk beside folders with many files', async () => {
    for (const name of ['aaa', 'home']) {
      await mkdir(join(folder, name));
      const fill = 'chdir $ARGV[0]; for (1 .. 2100) { open(my $f, ">", "l$_") }';
      await run('perl', ['-e', fill, join(folder, name)], COMMAND);
    }
    await mkdir(join(folder, 'avd', 'berth.avd'), { recursive: true });
    await writeFile(join(folder, 'avd', 'berth.avd', 'userdata-qemu.img'), Buffer.alloc(4 * MEBIBYTE, 1));
    expect(await folderBytes(folder)).toBeGreaterThanOrEqual(4 * MEBIBYTE);
  });

  it('are counted whatever the user of an emulator puts there', async () => {
    await writeFile(join(folder, 'file'), Buffer.alloc(MEBIBYTE, 1));
    const own = join(folder, 'own');
    await mkdir(own);
    await symlink('loop', join(own, 'loop'));
    await symlink('..', join(own, 'up'));
    await symlink('../file', join(own, 'again'));
    await mkdir(join(folder, 'links'));
    // A program of the host, which is larger than everything in the folder.
    await symlink(process.execPath, join(folder, 'links', 'program'));
    await run('mkfifo', [join(own, 'pipe')], COMMAND);
    await run('perl', ['-e', "chdir $ARGV[0]; for (1 .. 2500) { mkdir 'd'; chdir 'd' }", own], COMMAND);
    await run('perl', ['-e', 'chdir $ARGV[0]; for (1 .. 3000) { symlink "x", "l$_" }', own], COMMAND);
    const bytes = await folderBytes(folder);
    expect(bytes).toBeGreaterThanOrEqual(MEBIBYTE);
    expect(bytes).toBeLessThan(12 * MEBIBYTE);
  });
});
