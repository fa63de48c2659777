import { spawn } from 'node:child_process';
import { chmod, lstat, mkdir, readFile, readdir, readlink, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it, vi } from 'vitest';
import { run } from '../../base/exec.ts';
import { makeFolder } from '../../test/support/folder.ts';
import { copyOut } from './guestfiles.ts';
import { GuestShell } from './guestshell.ts';

/** Time limit of a program that makes a small archive. */
const ARCHIVE_MILLISECONDS = 30_000;
const MODE = 0o7777;

/**
 * Returns a shell whose guest is this computer. Of each folder that is copied out of it, the guest sends the file `archive` of the folder, as a
 * hostile guest could.
 */
async function hostileGuest(): Promise<GuestShell> {
  const programs = makeFolder();
  const tar = `#!/bin/sh\ncase $1 in -cf) exec cat "$4/archive" ;; *) PATH=\${PATH#*:} exec tar "$@" ;; esac\n`;
  await writeFile(join(programs, 'tar'), tar, { mode: 0o755 });
  // The last argument is the command for the guest.
  await writeFile(join(programs, 'ssh'), '#!/bin/sh\nfor last do :; done\nexec sh -c "$last"\n', {
    mode: 0o755,
  });
  vi.stubEnv('PATH', `${programs}:${process.env['PATH']}`);
  const login = { name: 'vm', user: 'root', options: [], folder: programs };
  return new GuestShell(login, spawn('true'));
}

/** Makes an archive of a folder with entries that `make` has put into it. */
async function archiveOf(make: (folder: string) => Promise<unknown>): Promise<string> {
  const [folder, guest] = [makeFolder(), makeFolder()];
  await make(folder);
  await run('tar', ['-cf', join(guest, 'archive'), '-C', folder, '.'], {
    timeoutMilliseconds: ARCHIVE_MILLISECONDS,
  });
  return guest;
}

async function copy(source: string, target: string): Promise<string[]> {
  const lines: string[] = [];
  await using guest = await hostileGuest();
  await copyOut(
    guest,
    { source, target },
    (line) => lines.push(line),
    AbortSignal.timeout(ARCHIVE_MILLISECONDS),
  );
  return lines;
}

describe('a folder of a hostile guest', () => {
  it('brings no link that leads out of the target, no pipe, and no rights of its owner', async () => {
    const guest = await archiveOf(async (folder) => {
      await mkdir(join(folder, 'in', 'side'), { recursive: true });
      await writeFile(join(folder, 'in', 'file'), 'text');
      await writeFile(join(folder, 'in', 'program'), '');
      await chmod(join(folder, 'in', 'program'), 0o6755);
      await chmod(join(folder, 'in', 'side'), 0o1777);
      await run('mkfifo', [join(folder, 'pipe')], { timeoutMilliseconds: ARCHIVE_MILLISECONDS });
      for (const [name, link] of [
        ['absolute', '/etc'],
        ['above', '..'],
        ['in/above', '../../x'],
        ['in/through', 'side/../../..'],
        ['in/side/good', '../../in/file'],
        ['good', './in/file'],
      ] as const) {
        await symlink(link, join(folder, name));
      }
    });
    const target = join(makeFolder(), 'new', 'out');
    const lines = await copy(guest, target);
    const out = ['above', 'absolute', 'in/above', 'in/through', 'pipe'];
    expect(new Set(lines)).toEqual(new Set(out.map((name) => `${join(target, name)} stays in the guest\n`)));
    expect((await readdir(target)).toSorted()).toEqual(['good', 'in']);
    expect(await readFile(join(target, 'good'), 'utf8')).toBe('text');
    expect(await readlink(join(target, 'in', 'side', 'good'))).toBe('../../in/file');
    expect((await lstat(join(target, 'in', 'program'))).mode & MODE & ~0o777).toBe(0);
    expect((await lstat(join(target, 'in', 'side'))).mode & MODE & ~0o777).toBe(0);
  });

  it('goes through no link that is in the target, and leaves the other entries there', async () => {
    const [outside, target] = [makeFolder(), makeFolder()];
    await mkdir(join(target, 'kept'));
    await writeFile(join(target, 'kept', 'mine'), 'mine');
    await symlink(outside, join(target, 'link'));
    await symlink(join(outside, 'file'), join(target, 'file'));
    const guest = await archiveOf(async (folder) => {
      for (const name of ['kept', 'link']) {
        await mkdir(join(folder, name));
        await writeFile(join(folder, name, 'theirs'), 'theirs');
      }
      await writeFile(join(folder, 'file'), 'theirs');
    });
    expect(await copy(guest, target)).toEqual([]);
    expect(await readdir(outside)).toEqual([]);
    expect((await readdir(join(target, 'kept'))).toSorted()).toEqual(['mine', 'theirs']);
    expect(await readFile(join(target, 'link', 'theirs'), 'utf8')).toBe('theirs');
    expect(await readFile(join(target, 'file'), 'utf8')).toBe('theirs');
  });

  it('with an archive that tar refuses is a failed copy, and leaves nothing', async () => {
    const [guest, target] = [makeFolder(), makeFolder()];
    await writeFile(join(guest, 'archive'), 'no archive'.repeat(200));
    await expect(copy(guest, target)).rejects.toMatchObject({ exitCode: 207 });
    expect(await readdir(target)).toEqual([]);
    await writeFile(join(target, 'file'), '');
    await expect(copy(guest, join(target, 'file'))).rejects.toMatchObject({ exitCode: 207 });
  });
});
