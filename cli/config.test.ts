import { lstat, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import type { Terminal } from './terminal.ts';
import { change } from './config.ts';

it('a settings file that is a link stays a link, and the file to which it leads is changed', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-settings-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  await mkdir(join(folder, 'berth'));
  const link = join(folder, 'berth', 'config.yaml');
  await writeFile(join(folder, 'dotfile'), 'ssh:\n  user: ci\n');
  await symlink('../dotfile', link);
  const terminal = { environment: { XDG_CONFIG_HOME: folder }, out: () => undefined };
  await change(terminal as unknown as Terminal, { output: 'table' }, 'https://berth.example');
  expect((await lstat(link)).isSymbolicLink()).toBe(true);
  const changed = await readFile(join(folder, 'dotfile'), 'utf8');
  expect(changed).toBe('ssh:\n  user: ci\napiURL: https://berth.example\n');
});
