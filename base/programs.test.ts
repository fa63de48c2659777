import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { findProgram } from './programs.ts';

const NAME = 'berth-test-program';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-programs-'));
  await mkdir(join(folder, 'bin'));
  await program(join(folder, 'bin', NAME));
});

afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(folder, { recursive: true });
});

async function program(path: string, mode = 0o755): Promise<void> {
  await writeFile(path, '#!/bin/sh\n');
  await chmod(path, mode);
}

test.each<[string, (entry: string) => Promise<unknown> | string]>([
  ['a file', (entry) => program(entry)],
  ['missing', (entry) => entry],
  ['a link to itself', (entry) => symlink(entry, entry)],
  ['a name that is too long', (entry) => `${entry}${'x'.repeat(300)}`],
  ['a path that is too long', (entry) => `${entry}${'/x'.repeat(5000)}`],
  ['empty', () => ''],
  [
    'a folder with a folder of that name',
    async (entry) => {
      await mkdir(join(entry, NAME), { recursive: true });
    },
  ],
  [
    'a folder with a file that is no program',
    async (entry) => {
      await mkdir(entry);
      await program(join(entry, NAME), 0o644);
    },
  ],
  [
    'a folder with a link to nothing',
    async (entry) => {
      await mkdir(entry);
      await symlink('/nonexistent', join(entry, NAME));
    },
  ],
])('an entry of PATH that is %s is skipped', async (_, make) => {
  const entry = join(folder, 'entry');
  const made = await make(entry);
  vi.stubEnv('PATH', [typeof made === 'string' ? made : entry, join(folder, 'bin')].join(delimiter));
  expect(await findProgram(NAME)).toBe(join(folder, 'bin', NAME));
});

test('further folders come last, and a program that is nowhere is not found', async () => {
  vi.stubEnv('PATH', '/nonexistent');
  expect(await findProgram(NAME, [join(folder, 'bin')])).toBe(join(folder, 'bin', NAME));
  expect(await findProgram(NAME)).toBeUndefined();
});
