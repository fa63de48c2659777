import { spawn } from 'node:child_process';
import {
  chmod,
  lstat,
  mkdir,
  open as openFile,
  readFile,
  readdir,
  readlink,
  symlink,
  writeFile,
} from 'node:fs/promises';
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
 * hostile guest could. `unpacking` is the script of the tar that unpacks it.
 */
async function hostileGuest(unpacking = 'PATH=${PATH#*:} exec tar "$@"'): Promise<GuestShell> {
  const programs = makeFolder();
  const tar = `#!/bin/sh\ncase $1 in -cf) exec cat "$4/archive" ;; *) ${unpacking} ;; esac\n`;
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

/** Returns an archive that has an empty file so many times. */
function repeated(path: string, times: number): Buffer {
  const header = (name: string, type: string, size: number): Buffer => {
    const bytes = Buffer.alloc(512);
    bytes.write(name);
    bytes.write('0000644\0', 100);
    bytes.write(`${size.toString(8).padStart(11, '0')}\0`, 124);
    bytes.write(`${' '.repeat(8)}${type}`, 148);
    bytes.write('ustar  \0', 257);
    const sum = bytes.reduce((all, byte) => all + byte, 0);
    bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
    return bytes;
  };
  const long = Buffer.alloc(Math.ceil((path.length + 1) / 512) * 512);
  long.write(path);
  const entry = Buffer.concat([
    header('././@LongLink', 'L', path.length + 1),
    long,
    header(path.slice(0, 99), '0', 0),
  ]);
  return Buffer.concat([...Array.from({ length: times }, () => entry), Buffer.alloc(1024)]);
}

async function copy(source: string, target: string, unpacking?: string): Promise<string[]> {
  const lines: string[] = [];
  await using guest = await hostileGuest(unpacking);
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

  it('can have names that are not UTF-8', async () => {
    const name = Buffer.from('caf\xe9', 'latin1');
    const guest = await archiveOf(async (folder) => {
      const path = Buffer.concat([Buffer.from(`${folder}/`), name]);
      await mkdir(path);
      const inPath = (text: string): Buffer => Buffer.concat([path, Buffer.from(`/${text}\xe9`, 'latin1')]);
      await writeFile(inPath('file'), 'text');
      await chmod(inPath('file'), 0o4644);
      await symlink('/etc', inPath('out'));
    });
    const target = makeFolder();
    expect(await copy(guest, target)).toEqual([
      `${join(target, 'caf\uFFFD', 'out\uFFFD')} stays in the guest\n`,
    ]);
    expect(await readdir(target, { encoding: 'buffer' })).toEqual([name]);
    const inside = await readdir(Buffer.concat([Buffer.from(`${target}/`), name]), { encoding: 'buffer' });
    expect(inside).toEqual([Buffer.from('file\xe9', 'latin1')]);
  });

  it('brings no link that goes through a link of the target, and goes on to bring links through its own', async () => {
    const [outside, target] = [makeFolder(), makeFolder()];
    await symlink(outside, join(target, 'data'));
    await symlink(outside, join(target, 'own'));
    const guest = await archiveOf(async (folder) => {
      await mkdir(join(folder, 'in'));
      await mkdir(join(folder, 'own'));
      for (const [name, link] of [
        ['report', 'data/x'],
        ['last', './data'],
        ['in/by', '../chain/x'],
        ['chain', 'data'],
        ['round', 'round/x'],
        ['lib.so', 'lib.so.1'],
        ['lib.so.1', 'in/lib.so.1.2'],
        ['mine', 'own/x'],
        ['in/mine', '../mine'],
      ] as const) {
        await symlink(link, join(folder, name));
      }
    });
    const lines = await copy(guest, target);
    const out = ['chain', 'in/by', 'last', 'report', 'round'];
    expect(lines.toSorted()).toEqual(out.map((name) => `${join(target, name)} stays in the guest\n`));
    expect((await readdir(target)).toSorted()).toEqual(['data', 'in', 'lib.so', 'lib.so.1', 'mine', 'own']);
    expect(await readdir(join(target, 'in'))).toEqual(['mine']);
  });

  it('has few lines about what stays in the guest', async () => {
    const guest = await archiveOf(async (folder) => {
      await Promise.all(
        Array.from({ length: 23 }, async (_, at) => await symlink('/etc', join(folder, `l${at}`))),
      );
    });
    const target = makeFolder();
    const lines = await copy(guest, target);
    expect(lines).toHaveLength(21);
    expect(lines.at(-1)).toBe(`3 more entries of ${target} stay in the guest\n`);
  });

  it('with paths that are too long, or too many folders, is a failed copy, and leaves nothing', async () => {
    const target = makeFolder();
    // The whole path of the file is longer than the system takes, and that in the archive is not.
    const long = makeFolder();
    await writeFile(join(long, 'archive'), repeated(`${'d/'.repeat(2_040)}file`, 1));
    await expect(copy(long, target)).rejects.toThrow('ENAMETOOLONG');
    expect(await readdir(target)).toEqual([]);
    const many = makeFolder();
    await writeFile(join(many, 'archive'), repeated(`d${'/'.repeat(4_000)}file`, 2_600));
    await expect(copy(many, target)).rejects.toThrow(
      /more than 1000000 entries, or more than 10000000 folders/,
    );
    expect(await readdir(target)).toEqual([]);
  });

  it('with more than a million entries is a failed copy, and leaves nothing', async () => {
    const target = makeFolder();
    const guest = makeFolder();
    await writeFile(join(guest, 'archive'), '');
    // Real files would take minutes, so a stand-in for tar tells their names alone.
    const copyMany = async (entries: number) => await copy(guest, target, `yes x | head -n ${entries}`);
    expect(await copyMany(1_000_000)).toEqual([]);
    await expect(copyMany(1_000_001)).rejects.toThrow('it has more than 1000000 entries');
    expect(await readdir(target)).toEqual([]);
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

describe('a single file', () => {
  it('replaces a link at its target, keeps the permissions of a file there, and leaves no other file', async () => {
    const [guest, outside, target] = [makeFolder(), makeFolder(), makeFolder()];
    await writeFile(join(guest, 'file'), 'theirs');
    await writeFile(join(outside, 'mine'), 'mine');
    await symlink(join(outside, 'mine'), join(target, 'link'));
    await writeFile(join(target, 'secret'), '', { mode: 0o600 });
    for (const name of ['link', 'secret', 'new']) {
      await copy(join(guest, 'file'), join(target, name));
      expect(await readFile(join(target, name), 'utf8')).toBe('theirs');
    }
    expect(await readFile(join(outside, 'mine'), 'utf8')).toBe('mine');
    expect((await lstat(join(target, 'link'))).isFile()).toBe(true);
    expect((await lstat(join(target, 'secret'))).mode & MODE).toBe(0o600);
    expect((await readdir(target)).toSorted()).toEqual(['link', 'new', 'secret']);
  });

  it('goes into a pipe, an open file or a device that is its target', async () => {
    const [guest, target] = [makeFolder(), makeFolder()];
    await writeFile(join(guest, 'file'), 'theirs');
    const pipe = join(target, 'pipe');
    await run('mkfifo', [pipe], { timeoutMilliseconds: ARCHIVE_MILLISECONDS });
    const [text] = await Promise.all([readFile(pipe, 'utf8'), copy(join(guest, 'file'), pipe)]);
    expect(text).toBe('theirs');
    await using open = await openFile(join(target, 'open'), 'w');
    await copy(join(guest, 'file'), `/dev/fd/${open.fd}`);
    expect(await readFile(join(target, 'open'), 'utf8')).toBe('theirs');
    await copy(join(guest, 'file'), '/dev/null');
    expect((await lstat('/dev/null')).isCharacterDevice()).toBe(true);
    await expect(copy(join(guest, 'file'), target)).rejects.toMatchObject({ exitCode: 207 });
  });
});
