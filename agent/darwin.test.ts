/** Branches of the agent for macOS. The whole agent runs on a stand-in for macOS in test/integration/agent-mac.test.ts. */
import { copyFileSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { findProgram } from '../base/exec.ts';
import { makeFolder } from '../test/support/folder.ts';
import { askFileServer } from './disks/fileserver.ts';
import { createQcow2, qcow2Info } from './disks/qemuimg.ts';
import { digHoles } from './disks/unpack.ts';
import { canPassSockets } from './drivers/qemu/dbusconnection.ts';
import { createNetwork, networkSchema } from './networkdriver.ts';
import { MachineCgroups } from './processes/cgroup.ts';
import { hostBootId } from './processes/process.ts';
import { hostUsage, UsageReader } from './processes/usage.ts';
import { requireAnswer } from './images/sources/file.ts';

const NEVER = new AbortController().signal;
const silent = pino({ level: 'silent' });

/** Lets the agent find only these programs. */
async function onlyPrograms(...names: string[]): Promise<void> {
  const bin = join(makeFolder(), 'bin');
  mkdirSync(bin);
  for (const name of names) {
    symlinkSync((await findProgram(name)) ?? '', join(bin, name));
  }
  vi.stubEnv('PATH', bin);
}

beforeEach(async () => {
  // Only macOS has the program that reads the boot id there. The boot id that is read here is remembered.
  await hostBootId();
  vi.spyOn(process, 'platform', 'get').mockReturnValue('darwin');
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

test('control groups are neither made nor read, even for root', async () => {
  vi.spyOn(process, 'getuid').mockReturnValue(0);
  const root = makeFolder();
  writeFileSync(join(root, 'cgroup.controllers'), 'cpu memory pids\n');
  mkdirSync(join(root, 'berth', 'vm-1'), { recursive: true });
  writeFileSync(join(root, 'berth', 'vm-1', 'cpu.stat'), 'usage_usec 2500000000000\n');
  writeFileSync(join(root, 'berth', 'vm-1', 'memory.current'), '1\n');
  const limits = { memoryBytes: 1, processes: 1, cpu: 1 };
  await new MachineCgroups(silent, [root]).add('vm-2', process.pid, limits);
  expect(await new MachineCgroups(silent, [root]).memoryKills('vm-1')).toBe(0);
  const usage = await new UsageReader([root]).machines([{ uid: 'vm-1', pid: process.pid }]);
  expect(usage.get('vm-1')?.cpuSeconds ?? 0).toBeLessThan(1_000_000);
});

test('the usage of the host is measured without /proc', async () => {
  const { cpuSeconds, workingSetBytes } = await hostUsage();
  expect(cpuSeconds).toBeGreaterThan(0);
  expect(workingSetBytes).toBeGreaterThan(0);
});

test('disks are handled without the programs of Linux', async () => {
  await onlyPrograms('qemu-img');
  const path = join(makeFolder(), 'disk.qcow2');
  await createQcow2(path, 1024 ** 2);
  await using file = await open(path);
  expect(JSON.parse(await qcow2Info({ path, file }, undefined))).toMatchObject({ 'virtual-size': 1024 ** 2 });
  const copy = `${path}.copy`;
  copyFileSync(path, copy);
  await digHoles(copy);
});

test('a file server is asked by a program of macOS', async () => {
  await onlyPrograms('df');
  expect(askFileServer('/srv').program).toBe('df');
  await requireAnswer(makeFolder(), NEVER);
});

test('a network for QEMU has no packet filter, and says so', () => {
  const lines: string[] = [];
  const network = createNetwork(networkSchema.parse({ driver: 'user' }), {
    dataDirectory: makeFolder(),
    nodeAddress: '127.0.0.1',
    ports: { allowed: ['1-65535'], denied: [] } as never,
    clusterCIDRs: [],
    machineUsers: ['1-2'],
    tart: undefined,
    metadata: undefined as never,
    resolvConf: undefined,
    logger: pino({ level: 'warn' }, { write: (line: string) => void lines.push(line) }),
  });
  expect(network.name).toBe('user');
  expect(lines.join('')).toContain('run only guests you trust');
});

test('QEMU has no display that the agent connects to over passed sockets', () => {
  expect(canPassSockets()).toBe(false);
});
