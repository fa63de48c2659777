import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { sync } from '../../../base/files.ts';
import { createQcow2 } from '../../disks/qemuimg.ts';
import type { VmPlan } from '../driver.ts';
import { createFiles, enlargeDisk } from './files.ts';
import type { GuestPlatform } from './platform.ts';
import { FILES, type MachineFile } from './state.ts';

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
  const platform = { firmware: { code: '', variables: template } } as unknown as GuestPlatform;
  await createFiles(root, { uid: 'uid', path: join(root, 'uid') }, { plan, base: undefined, platform });
  expect(synced).toEqual([`uid/${FILES.variables}: variables`]);
});

test.each([
  // 1.5G is not a multiple of the size of a sector.
  [1_500_000_000, 1_500_000_256],
  [2 ** 31, 2 ** 31],
])('a disk grows to %i bytes in whole sectors', async (wanted, bytes) => {
  await createQcow2(join(root, FILES.disk), 1024 ** 2);
  await enlargeDisk(root, machine(1024 ** 2), { sizeBytes: wanted, isRoot: false });
  expect(diskInfo()).toMatchObject({ 'virtual-size': bytes });
});

test('a machine that boots from an ISO gets a disk when its VM asks for one later', async () => {
  await enlargeDisk(root, machine(undefined), { sizeBytes: 2 ** 31, isRoot: false });
  expect(diskInfo()).toMatchObject({ format: 'qcow2', 'virtual-size': 2 ** 31 });
});

function machine(diskBytes: number | undefined): MachineFile {
  const at = { version: 1, architecture: 'amd64', machineType: 'pc', intent: 'stop' } as const;
  return { ...at, live: false, suspended: false, diskBytes };
}

function diskInfo(): unknown {
  const disk = join(root, FILES.disk);
  return JSON.parse(execFileSync('qemu-img', ['info', '--output=json', disk], { encoding: 'utf8' }));
}
