import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { LockedError, lockDataDirectory } from './lock.ts';
import { parseStartTime } from './process.ts';
import { makeFolder } from '../../test/support/folder.ts';

let directory: string;

beforeEach(() => {
  directory = makeFolder();
});

test('a second agent in the same data directory is refused, with the pid of the first', () => {
  const unlock = lockDataDirectory(directory);
  expect(() => lockDataDirectory(directory)).toThrow(
    new LockedError(`An agent with pid ${process.pid} already uses the data directory ${directory}`),
  );
  unlock();
  lockDataDirectory(directory)();
  expect(existsSync(join(directory, 'agent.lock'))).toBe(false);
});

test('the lock of an agent that was killed is taken over', async () => {
  const child = spawn(process.execPath, ['-e', '']);
  await once(child, 'exit');
  const file = join(directory, 'agent.lock');
  writeFileSync(file, JSON.stringify({ pid: child.pid, startTime: '1' }));
  lockDataDirectory(directory);
  expect(readFileSync(file, 'utf8')).toContain(`"pid":${process.pid},`);
});

test('a pid that another process has by now does not hold the lock', () => {
  writeFileSync(join(directory, 'agent.lock'), JSON.stringify({ pid: process.pid, startTime: '1' }));
  expect(lockDataDirectory(directory)).not.toThrow();
});

describe('a pid that a process of another user has', () => {
  const lock = (pid: number | undefined, startTime: string | undefined): void =>
    writeFileSync(join(directory, 'agent.lock'), JSON.stringify({ pid, startTime }));

  beforeEach(() => {
    // The tests can run as root, and root may send signals to all processes.
    vi.spyOn(process, 'kill').mockImplementation(() => {
      throw Object.assign(new Error('kill EPERM'), { code: 'EPERM' });
    });
  });

  afterEach(() => {
    vi.restoreAllMocks();
  });

  test('does not hold the lock if the process started at another time', () => {
    lock(process.pid, '1');
    expect(lockDataDirectory(directory)).not.toThrow();
  });

  test('holds the lock if the process is the agent', () => {
    lock(process.pid, parseStartTime(readFileSync(`/proc/${process.pid}/stat`, 'utf8')));
    expect(() => lockDataDirectory(directory)).toThrow(LockedError);
  });

  test('holds the lock if /proc hides the process', async () => {
    const child = spawn(process.execPath, ['-e', '']);
    await once(child, 'exit');
    lock(child.pid, '1');
    expect(() => lockDataDirectory(directory)).toThrow(LockedError);
  });
});

describe('on a host without /proc', () => {
  const lock = (startTime: string): void =>
    writeFileSync(join(directory, 'agent.lock'), JSON.stringify({ pid: process.pid, startTime }));

  beforeEach(() => {
    vi.spyOn(process, 'platform', 'get').mockReturnValue('darwin');
  });

  afterEach(() => {
    vi.restoreAllMocks();
    vi.unstubAllEnvs();
  });

  test('the lock contains the start time, so a process that has the pid after a reboot does not hold it', () => {
    lockDataDirectory(directory);
    const text = readFileSync(join(directory, 'agent.lock'), 'utf8');
    const { startTime } = JSON.parse(text) as { startTime: string };
    const age = Date.now() - Date.parse(`${startTime} UTC`);
    expect(Math.abs(age - process.uptime() * 1000)).toBeLessThan(10_000);
    lock('Fri Nov  2 03:04:05 2001');
    expect(lockDataDirectory(directory)).not.toThrow();
  });

  test('a running agent holds the lock, also if the time zone has changed', () => {
    lockDataDirectory(directory);
    vi.stubEnv('TZ', 'ABC-9');
    expect(() => lockDataDirectory(directory)).toThrow(LockedError);
  });
});

test('an empty lock file, left by a full disk, holds nothing', () => {
  writeFileSync(join(directory, 'agent.lock'), '');
  expect(lockDataDirectory(directory)).not.toThrow();
});

/** Time limit for the end of a process. A process usually ends in milliseconds, but a busy machine needs longer. */
const ENDED_MILLISECONDS = 30_000;

/** A program that ends its main thread and continues in another thread. An agent is in this state if a thread waits for a slow disk. */
const HALF_ENDED = `
  my ($exit) = @ARGV;
  threads->create(sub { sleep 1 while getppid() == ${process.pid} })->detach;
  print "ready\\n"; close(STDOUT);
  syscall($exit + 0, 0);`;
const EXIT_OF_A_THREAD: Partial<Record<string, string>> = { x64: '60', arm64: '93' };

test('an agent of which a thread still lives holds the lock, though its process looks like a zombie', async (context) => {
  context.skip(spawnSync('perl', ['-Mthreads', '-e', '1']).status !== 0, 'needs perl with threads');
  const exit = EXIT_OF_A_THREAD[process.arch] ?? '';
  const child = spawn('perl', ['-Mthreads', '-e', HALF_ENDED, exit], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  try {
    const stat = `/proc/${child.pid}/stat`;
    const state = (): string =>
      readFileSync(stat, 'utf8')
        .replace(/^.*\) /, '')
        .slice(0, 1);
    await expect.poll(state, { timeout: ENDED_MILLISECONDS }).toBe('Z');
    const startTime = parseStartTime(readFileSync(stat, 'utf8'));
    writeFileSync(join(directory, 'agent.lock'), JSON.stringify({ pid: child.pid, startTime }));
    expect(() => lockDataDirectory(directory)).toThrow(`An agent with pid ${child.pid} already uses`);
  } finally {
    child.kill('SIGKILL');
  }
});

test('the lock of an agent that nobody has waited for yet is taken over', async () => {
  // A shell that becomes another program never waits for the programs that it started.
  const shell = spawn('sh', ['-c', 'exec 3<&0; cat <&3 & echo $!; exec sleep 60'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  try {
    const [line] = (await once(shell.stdout, 'data')) as [Buffer];
    const pid = Number(line.toString());
    const text = (): string => readFileSync(`/proc/${pid}/stat`, 'utf8');
    const parent = (): string => readFileSync(`/proc/${shell.pid}/comm`, 'utf8');
    await expect.poll(parent, { timeout: ENDED_MILLISECONDS }).toBe('sleep\n');
    shell.stdin.end();
    await expect.poll(text, { timeout: ENDED_MILLISECONDS }).toContain(') Z ');
    const startTime = /\) . (?:\S+ ){18}(\d+)/.exec(text())?.[1] ?? '';
    writeFileSync(join(directory, 'agent.lock'), JSON.stringify({ pid, startTime }));
    expect(lockDataDirectory(directory)).not.toThrow();
  } finally {
    shell.kill('SIGKILL');
  }
});
