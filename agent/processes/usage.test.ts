import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { totalmem, uptime, availableParallelism } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { hostUsage, processesInPs, UsageReader } from './usage.ts';
import { makeFolder } from '../../test/support/folder.ts';

const MEBIBYTE = 1024 ** 2;
/** Memory that a busy process of a test takes. Node.js itself takes tens of mebibytes. */
const TAKEN_BYTES = 256 * MEBIBYTE;
/** Process that works for 200 ms, and keeps memory. Its child does the same in the same session. */
const BUSY = `
const kept = Buffer.alloc(${TAKEN_BYTES}, 1);
for (const end = Date.now() + 200; Date.now() < end; );
process.stdout.write('done');
setInterval(() => kept, 1000);
`;

/** Makes a tree of control groups with the given files, and returns its path. */
async function tree(files: Record<string, string>): Promise<string> {
  const root = makeFolder();
  for (const [name, text] of Object.entries(files)) {
    await mkdir(join(root, name, '..'), { recursive: true });
    await writeFile(join(root, name), text);
  }
  return root;
}

async function busy(code = BUSY): Promise<ChildProcess> {
  const child = spawn(process.execPath, ['-e', code], {
    detached: true,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  onTestFinished(() => void process.kill(-(child.pid ?? 0), 'SIGKILL'));
  await once(child.stdout ?? child, 'data');
  return child;
}

it('version 2 of control groups: reads the time, and the memory without the inactive page cache', async () => {
  const root = await tree({
    'cgroup.controllers': 'cpu memory pids\n',
    'berth/vm-1/cpu.stat': 'usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n',
    'berth/vm-1/memory.current': '1000000\n',
    'berth/vm-1/memory.stat': 'anon 600000\ninactive_file 300000\nactive_file 100000\n',
  });
  expect(await new UsageReader([root]).machines([{ uid: 'vm-1', pid: 1 }])).toEqual(
    new Map([['vm-1', { cpuSeconds: 2.5, workingSetBytes: 700_000 }]]),
  );
});

it('version 1 of control groups: finds the controllers in hierarchies of any name', async () => {
  const root = await tree({
    'cpu,cpuacct/cgroup.procs': '',
    'cpu,cpuacct/berth/vm-1/cpuacct.usage': '2500000000\n',
    'memory/cgroup.procs': '',
    'memory/berth/vm-1/memory.usage_in_bytes': '1000000\n',
    'memory/berth/vm-1/memory.stat': 'inactive_file 5\ntotal_inactive_file 300000\n',
    'pids/cgroup.procs': '',
  });
  expect(await new UsageReader([root]).machines([{ uid: 'vm-1', pid: 1 }])).toEqual(
    new Map([['vm-1', { cpuSeconds: 2.5, workingSetBytes: 700_000 }]]),
  );
});

it.each([
  ['no control group', {}],
  [
    'an empty control group, because it could not be moved there',
    {
      'cgroup.controllers': 'cpu memory pids\n',
      'berth/vm-1/cpu.stat': 'usage_usec 0\n',
      'berth/vm-1/memory.current': '0\n',
    },
  ],
])('a machine with %s is measured by the processes of its session', async (_, files) => {
  const { pid = 0 } = await busy(
    `const child = require('node:child_process').spawn(process.execPath, ['-e', ${JSON.stringify(BUSY)}], { stdio: ['ignore', 'inherit', 'inherit'] });`,
  );
  const reader = new UsageReader([await tree({ 'some/file': '', ...files })]);
  const usage = (await reader.machines([{ uid: 'vm-1', pid }])).get('vm-1');
  expect(usage?.cpuSeconds).toBeGreaterThan(0.15);
  expect(usage?.workingSetBytes).toBeGreaterThan(TAKEN_BYTES);
  expect(usage?.workingSetBytes).toBeLessThan(TAKEN_BYTES * 3);
});

it('leaves out a machine whose process has ended', async () => {
  const child = spawn('true');
  await once(child, 'exit');
  const reader = new UsageReader([await tree({ 'some/file': '' })]);
  expect(await reader.machines([{ uid: 'vm-1', pid: child.pid ?? 0 }])).toEqual(new Map());
});

it('reads the times that ps prints on macOS', () => {
  const text = '    1   0:12.50  10240\n  501 100:00.00      0\n  777 1:02:03     16\n\n';
  expect(processesInPs(text)).toEqual([
    { leader: 1, cpuSeconds: 12.5, workingSetBytes: 10_485_760 },
    { leader: 501, cpuSeconds: 6000, workingSetBytes: 0 },
    { leader: 777, cpuSeconds: 3723, workingSetBytes: 16_384 },
  ]);
});

it('measures the host: its time grows with the work, and its memory is part of the whole memory', async () => {
  const before = await hostUsage();
  await busy();
  const after = await hostUsage();
  expect(after.cpuSeconds - before.cpuSeconds).toBeGreaterThan(0.15);
  expect(after.cpuSeconds).toBeLessThan(uptime() * availableParallelism() * 1.1);
  expect(after.workingSetBytes).toBeGreaterThan(TAKEN_BYTES);
  expect(after.workingSetBytes).toBeLessThan(totalmem());
});
