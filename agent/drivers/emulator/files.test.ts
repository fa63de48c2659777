import type { Dir } from 'node:fs';
import type * as fs from 'node:fs/promises';
import { access, mkdir, mkdtemp, opendir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { AVD_NAME, AVDS, FOLDERS } from './arguments.ts';
import { makeFiles, prepareStart } from './files.ts';

vi.mock('node:fs/promises', async (original) => {
  const real = await original<typeof fs>();
  return {
    ...real,
    opendir: vi.fn(real.opendir),
    writeFile: vi.fn(real.writeFile),
    readdir: vi.fn(() => Promise.reject(new Error('Out of memory'))),
  };
});

let folder: string;
let lock: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-emulator-'));
  const disks = join(folder, AVDS, `${AVD_NAME}.avd`);
  lock = join(disks, 'userdata.img.lock');
  await mkdir(disks, { recursive: true });
  await mkdir(join(folder, FOLDERS.home));
  await writeFile(lock, '');
});

afterEach(async () => {
  await rm(folder, { recursive: true });
});

async function* many(): AsyncGenerator<{ name: string }> {
  yield { name: 'userdata.img.lock' };
  for (let count = 0; count < 10_000; count += 1) {
    yield { name: 'x' };
  }
  throw new Error('Out of memory');
}

test('many files in the folder of an emulator do not fill the memory at its next start', async () => {
  vi.mocked(opendir).mockResolvedValueOnce(many() as unknown as Dir);
  await prepareStart(folder, 'token', undefined);
  await expect(access(lock)).rejects.toThrow('ENOENT');
  const token = join(folder, FOLDERS.home, '.emulator_console_auth_token');
  expect(await readFile(token, 'utf8')).toBe('token');
});

test('the description of the device of a new emulator survives a loss of power', async () => {
  vi.mocked(writeFile).mockClear();
  const described = {
    platform: 'android-34',
    device: 'pixel_7',
    imageType: 'google_apis',
    architecture: 'amd64',
  };
  await makeFiles(folder, described as Parameters<typeof makeFiles>[1], undefined);
  const written = vi
    .mocked(writeFile)
    .mock.calls.map(([path, , options]) => [basename(path as string), options]);
  expect(written).toEqual([
    [`${AVD_NAME}.ini`, expect.objectContaining({ flush: true })],
    ['config.ini', expect.objectContaining({ flush: true })],
  ]);
});
