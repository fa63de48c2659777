/**
 * Tests the copy of the image's files that machines use. The copy is made once, repaired if it is damaged, and kept as long as a machine
 * needs it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { hostFile, installRuntime, removeUnused } from './ownroot.ts';
import { makeFolder } from '../../test/support/folder.ts';

let folder: string;
let list: string;
let runtimes: string;
let sleeper: ChildProcess | undefined;

beforeEach(async () => {
  folder = makeFolder();
  list = join(folder, 'list');
  runtimes = join(folder, 'runtime');
  await mkdir(join(folder, 'image', 'lib'), { recursive: true });
  await writeFile(join(folder, 'image', 'hypervisor'), 'program', { mode: 0o755 });
  await writeFile(join(folder, 'image', 'lib', 'with space.so'), 'library');
  await writeList();
});

afterEach(async () => {
  sleeper?.kill('SIGKILL');
  sleeper = undefined;
});

/** Writes a list in the format of `sha256sum`. */
async function writeList(): Promise<void> {
  const lines: string[] = [];
  for (const name of ['hypervisor', join('lib', 'with space.so')]) {
    const path = join(folder, 'image', name);
    const sum = createHash('sha256')
      .update(await readFile(path))
      .digest('hex');
    lines.push(`${sum}  ${path}\n`);
  }
  await writeFile(list, lines.join(''));
}

/** Returns the path of a file's copy. */
function copyOf(runtime: string, name: string): string {
  return join(runtime, folder, 'image', name);
}

test('has the files at their own paths, so that they run unchanged', async () => {
  const runtime = await installRuntime(list, runtimes);
  expect(await readFile(copyOf(runtime, join('lib', 'with space.so')), 'utf8')).toBe('library');
  expect((await stat(copyOf(runtime, 'hypervisor'))).mode & 0o777).toBe(0o755);
  expect(await readdir(runtimes)).toHaveLength(1);
});

test('is unchanged if it is complete, and repaired if the host lost parts of it', async () => {
  const runtime = await installRuntime(list, runtimes);
  const { ino } = await stat(copyOf(runtime, 'hypervisor'));
  expect(await installRuntime(list, runtimes)).toBe(runtime);
  expect((await stat(copyOf(runtime, 'hypervisor'))).ino).toBe(ino);
  await writeFile(copyOf(runtime, 'hypervisor'), '');
  expect(await installRuntime(list, runtimes)).toBe(runtime);
  expect(await readFile(copyOf(runtime, 'hypervisor'), 'utf8')).toBe('program');
});

test('differs for another image, and the old one is removed when no machine uses it', async () => {
  const old = await installRuntime(list, runtimes);
  await writeFile(join(folder, 'image', 'hypervisor'), 'next');
  await writeList();
  const keep = await installRuntime(list, runtimes);
  expect(keep).not.toBe(old);
  expect(await readFile(copyOf(old, 'hypervisor'), 'utf8')).toBe('program');
  expect(await removeUnused(runtimes, keep)).toHaveLength(1);
  expect(existsSync(old)).toBe(false);
  expect(existsSync(keep)).toBe(true);
});

test('is kept while a machine uses it, and another one is removed', async ({ skip }) => {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) {
    skip('only root can mount');
  }
  const old = await installRuntime(list, runtimes);
  await writeFile(join(folder, 'image', 'hypervisor'), 'next');
  await writeList();
  const next = await installRuntime(list, runtimes);
  const mounted = join(folder, 'mounted');
  await mkdir(mounted);
  const program = [
    'sh',
    '-c',
    'mount --bind "$1" "$2" && echo mounted && exec sleep infinity',
    'sh',
    join(old, folder),
    mounted,
  ];
  sleeper = spawn('unshare', ['--mount', ...program], { stdio: ['ignore', 'pipe', 'inherit'] });
  await new Promise((resolve) => sleeper?.stdout?.once('data', resolve));
  expect(await removeUnused(runtimes, join(runtimes, 'other'))).toEqual([basename(next)]);
  expect(existsSync(copyOf(old, 'hypervisor'))).toBe(true);
});

test.each([
  ['a file', undefined],
  ['a relative link', '../run/names'],
  ['an absolute link', '/run/names'],
  ['a link to an absolute link', '../run/resolver/names'],
  ['a link below a folder that is an absolute link', '../var/run/names'],
])('a file of the host that is %s is read on the host', async (_, target) => {
  await Promise.all(
    ['etc', 'run/resolver', 'var'].map((name) => mkdir(join(folder, name), { recursive: true })),
  );
  await writeFile(join(folder, 'run', 'names'), 'nameserver 192.0.2.1');
  await symlink('/run/names', join(folder, 'run', 'resolver', 'names'));
  await symlink('/run', join(folder, 'var', 'run'));
  const path = join(folder, 'etc', 'resolv.conf');
  await (target === undefined ? writeFile(path, 'nameserver 192.0.2.1') : symlink(target, path));
  expect(await readFile(await hostFile('/etc/resolv.conf', folder), 'utf8')).toBe('nameserver 192.0.2.1');
});

test('a file of the host that is a link to itself has a path', async () => {
  await symlink('/names', join(folder, 'names'));
  expect(await hostFile('/names', folder)).toBe(join(folder, 'names'));
});
