import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join, relative } from 'node:path';
import { pino } from 'pino';
import { expect, it, onTestFinished, vi } from 'vitest';
import { MachineCgroups } from './cgroup.ts';
import { makeFolder } from '../../test/support/folder.ts';

vi.mock(import('node:fs/promises'), { spy: true });
vi.mock(import('node:os'), { spy: true });

const LIMITS = { memoryBytes: 96 * 1024 ** 2, processes: 64, cpu: 2 };
const isRoot = process.getuid?.() === 0;

/** Makes a folder that looks like a tree of version 2, without a kernel behind it. */
async function makeVersion2(): Promise<{ root: string; tree: MachineCgroups }> {
  const root = makeFolder();
  await writeFile(join(root, 'cgroup.controllers'), 'cpuset cpu io memory pids\n');
  return { root, tree: new MachineCgroups(pino({ level: 'silent' }), [root]) };
}

it('version 2: limits are written before the process is added, and are enabled in the groups above', async ({
  skip,
}) => {
  if (!isRoot) {
    skip('only root has control groups');
  }
  vi.mocked(availableParallelism).mockReturnValue(2);
  const { root, tree } = await makeVersion2();
  vi.mocked(writeFile).mockClear();
  await tree.add('uid', 4711, LIMITS);
  const written = vi
    .mocked(writeFile)
    .mock.calls.map(([file, text]) => [relative(root, file as string), text]);
  const enabled = (controller: string): string[][] =>
    ['.', 'berth'].map((group) => [join(group, 'cgroup.subtree_control'), `+${controller}`]);
  const ofMachine = (file: string, text: string): string[] => [join('berth', 'uid', file), text];
  expect(written).toEqual([
    ...enabled('memory'),
    ofMachine('memory.max', '100663296'),
    ...enabled('memory'),
    ofMachine('memory.oom.group', '1'),
    ...enabled('pids'),
    ofMachine('pids.max', '64'),
    ...enabled('cpu'),
    ofMachine('cpu.weight', '200'),
    ofMachine('cgroup.procs', '4711'),
    [join('berth', 'cpu.weight'), '200'],
  ]);
  expect(await readFile(join(root, 'berth', 'uid', 'memory.max'), 'utf8')).toBe('100663296');
  await writeFile(join(root, 'berth', 'uid', 'memory.events'), 'oom 1\noom_kill 1\noom_group_kill 1\n');
  expect(await tree.memoryKills('uid')).toBe(1);
});

it('all machines together have the shares of those that run, and at most those of the processors of the host', async ({
  skip,
}) => {
  if (!isRoot) {
    skip('only root has control groups');
  }
  vi.mocked(availableParallelism).mockReturnValue(6);
  const { root, tree } = await makeVersion2();
  const weight = async (): Promise<string> => await readFile(join(root, 'berth', 'cpu.weight'), 'utf8');
  await tree.add('ended', 4710, LIMITS);
  await writeFile(join(root, 'berth', 'ended', 'cgroup.procs'), '');
  await tree.add('first', 4711, LIMITS);
  expect(await weight()).toBe('200');
  await tree.add('second', 4712, { ...LIMITS, cpu: 3 });
  expect(await weight()).toBe('500');
  await tree.add('third', 4713, { ...LIMITS, cpu: 3 });
  expect(await weight()).toBe('600');
});

it('a host without a controller logs once which limits are missing', async ({ skip }) => {
  if (!isRoot) {
    skip('only root has control groups');
  }
  const root = makeFolder();
  await mkdir(join(root, 'pids'));
  await writeFile(join(root, 'pids', 'cgroup.procs'), '');
  const said: string[] = [];
  const tree = new MachineCgroups(
    pino({ level: 'warn' }, { write: (line: string) => void said.push(line) }),
    [root],
  );
  await tree.add('a', 4711, LIMITS);
  await tree.add('b', 4712, LIMITS);
  expect(said.map((line) => (JSON.parse(line) as { missing: unknown }).missing)).toEqual([['memory', 'cpu']]);
});

it('a machine that takes more memory than its limit ends alone', async ({ skip }) => {
  if (!isRoot || !(await hasMemoryGroups())) {
    skip('needs root and control groups of version 1 for memory');
  }
  const tree = new MachineCgroups(pino({ level: 'silent' }));
  const [greedy, neighbour] = ['greedy', 'neighbour'].map((name) => `test-${name}-${process.pid}`);
  const processes = [member(), member()] as const;
  onTestFinished(async () => {
    for (const one of processes) {
      one.kill('SIGKILL');
    }
    for (const uid of [greedy, neighbour]) {
      await tree.remove(uid ?? '');
    }
  });
  await tree.add(greedy ?? '', processes[0].pid ?? 0, LIMITS);
  await tree.add(neighbour ?? '', processes[1].pid ?? 0, LIMITS);
  const ended = once(processes[0], 'exit');
  processes[0].stdin?.write('take\n');
  expect(await ended).toEqual([null, 'SIGKILL']);
  expect(await tree.memoryKills(greedy ?? '')).toBe(1);
  expect(await tree.memoryKills(neighbour ?? '')).toBe(0);
  expect(processes[1].exitCode ?? processes[1].signalCode).toBeNull();
  // The group is left, as after a crash of the agent. The next run of the machine begins without the earlier kill.
  await expect.poll(async () => await tree.processes(greedy ?? '')).toEqual([]);
  await tree.add(greedy ?? '', processes[1].pid ?? 0, LIMITS);
  expect(await tree.memoryKills(greedy ?? '')).toBe(0);
  expect(await tree.processes(greedy ?? '')).toEqual([processes[1].pid]);
});

/** Starts a process that allocates 256 MiB after its first input. */
function member(): ChildProcess {
  const script = "process.stdin.once('data', () => { globalThis.kept = Buffer.alloc(256 * 1024 ** 2, 1); })";
  return spawn(process.execPath, ['-e', script], { stdio: ['pipe', 'ignore', 'ignore'] });
}

async function hasMemoryGroups(): Promise<boolean> {
  return await readFile('/sys/fs/cgroup/memory/memory.limit_in_bytes').then(
    () => true,
    () => false,
  );
}
