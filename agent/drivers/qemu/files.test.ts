import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { sync } from '../../../base/files.ts';
import { createQcow2 } from '../../disks/qemuimg.ts';
import type { VmPlan } from '../driver.ts';
import { createFiles, growDisk } from './files.ts';
import type { Platform } from './platform.ts';
import { FILES } from './state.ts';

vi.mock(import('../../../base/files.ts'), { spy: true });

let root: string;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'berth-machinefiles-'));
});

afterEach(async () => {
  vi.resetAllMocks();
  await rm(root, { recursive: true });
});

test('the firmware variables of a new machine survive a loss of power', async () => {
  const template = join(root, 'template.fd');
  await writeFile(template, 'variables');
  const synced: string[] = [];
  vi.mocked(sync).mockImplementation(async (path) => {
    synced.push(`${relative(root, path)}: ${await readFile(path, 'utf8')}`);
  });
  const plan = { guest: {}, runAs: undefined } as unknown as VmPlan;
  const platform = { firmware: { code: '', variables: template } } as unknown as Platform;
  await createFiles(root, { uid: 'uid', path: join(root, 'uid') }, { plan, base: undefined, platform });
  expect(synced).toEqual([`uid/${FILES.variables}: variables`]);
});

test.each([
  // 1.5G is not a multiple of the size of a sector.
  [1_500_000_000, 1_500_000_256],
  [2 ** 31, 2 ** 31],
])('a disk grows to %i bytes in whole sectors', async (wanted, bytes) => {
  const disk = join(root, FILES.disk);
  await createQcow2(disk, 1024 ** 2);
  const node = { driver: 'qcow2', file: { driver: 'file', filename: FILES.disk } };
  await growDisk(root, node, { sizeBytes: wanted, isRoot: false });
  const info = execFileSync('qemu-img', ['info', '--output=json', disk], { encoding: 'utf8' });
  expect(JSON.parse(info)).toMatchObject({ 'virtual-size': bytes });
});
