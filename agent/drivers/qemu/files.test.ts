import { execFileSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createQcow2 } from '../../disks/qemuimg.ts';
import { growDisk } from './files.ts';
import { FILES } from './state.ts';

let root: string;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'berth-machinefiles-'));
});

afterEach(async () => {
  await rm(root, { recursive: true });
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
