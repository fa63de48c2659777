import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import {
  findAllByArgument,
  findArguments,
  hostBootId,
  identify,
  isAlive,
  killByArgument,
  parseStartTime,
  processFiles,
  waitForExit,
} from './process.ts';

/** Time limit of a state that takes milliseconds on an idle machine. */
const STATE_MILLISECONDS = 30_000;

/** Returns a line in the format of /proc/PID/stat, for a process whose name imitates other fields. */
function stat(state: string, threads: number): string {
  const before = `4711 (qemu) Z 1 (x) ${state} 1 4711 4711 0 -1 4227084 2941 6539 1 0 2 1 3 2 20 0`;
  return `${before} ${threads} 0 1389051 0 0 18446744073709551615 0 0 0\n`;
}

describe('a process', () => {
  it('is known by its start time', () => {
    expect(parseStartTime(stat('S', 7))).toBe('1389051');
  });

  it('exists until the last of its threads has ended, because until then its disk is locked and its ports are in use', () => {
    expect(parseStartTime(stat('Z', 2))).toBe('1389051');
    expect(parseStartTime(stat('Z', 1))).toBeUndefined();
  });
});

describe('on a host without /proc, a process', () => {
  beforeEach(async () => {
    // Only macOS has the program that reads the boot id there. The boot id that is read here is remembered.
    await hostBootId();
    vi.spyOn(process, 'platform', 'get').mockReturnValue('darwin');
    vi.stubEnv('TZ', 'ABC-9');
  });

  afterEach(() => {
    vi.restoreAllMocks();
    vi.unstubAllEnvs();
  });

  it('stays alive when the time zone of the host changes', async () => {
    const identity = (await identify(process.pid))!;
    vi.stubEnv('TZ', 'DEF-3');
    expect(await isAlive(identity)).toBe(true);
    expect(await isAlive({ ...identity, startTime: 'Fri Nov  2 03:04:05 2001' })).toBe(false);
  });

  it('is found by its arguments, unless it is of another user, whose processes the agent cannot end', async (context) => {
    context.skip(process.getuid?.() !== 0, 'Only root starts a process of another user');
    const mark = `berth-mark-${randomUUID()}`;
    const start = (options: object): ChildProcess => {
      const child = spawn('sh', ['-c', 'read line', mark], {
        ...options,
        stdio: ['pipe', 'ignore', 'ignore'],
      });
      onTestFinished(() => void child.kill('SIGKILL'));
      return child;
    };
    const foreign = start({ uid: 65_534 });
    expect(await findAllByArgument(mark)).toEqual([]);
    expect(await findArguments(new Set([mark]))).toEqual(new Set());
    const own = [start({}), start({})].map(({ pid }) => pid);
    expect(new Set((await findAllByArgument(mark)).map(({ pid }) => pid))).toEqual(new Set(own));
    expect(await findArguments(new Set([mark, 'berth-mark']))).toEqual(new Set([mark]));
    await killByArgument('read line', mark);
    expect(await findAllByArgument(mark)).toEqual([]);
    expect(await identify(foreign.pid!)).toBeDefined();
  });
});

it('the wait for the end of a process does not end early when the clock of the host is set forward', async () => {
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
  onTestFinished(() => void child.kill('SIGKILL'));
  const identity = (await identify(child.pid!))!;
  let now = 0;
  vi.spyOn(Date, 'now').mockImplementation(() => (now += 86_400_000));
  onTestFinished(() => void vi.restoreAllMocks());
  const ended = waitForExit(identity, STATE_MILLISECONDS);
  setTimeout(() => child.kill('SIGKILL'), 50);
  expect(await ended).toBe(true);
});

describe('the mount tables of all processes', () => {
  it('can be read beside a zombie, which has no mount table', async (context) => {
    context.skip(process.platform !== 'linux', 'Only Linux has /proc');
    // A shell that becomes another program never waits for the programs that it started.
    const shell = spawn('sh', ['-c', 'exec 3<&0; cat <&3 & echo $!; exec sleep 60'], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    try {
      const [line] = (await once(shell.stdout, 'data')) as [Buffer];
      const pid = Number(line.toString());
      const program = (): string => readFileSync(`/proc/${shell.pid}/comm`, 'utf8');
      await expect.poll(program, { timeout: STATE_MILLISECONDS }).toBe('sleep\n');
      shell.stdin.end();
      const state = (): string => readFileSync(`/proc/${pid}/stat`, 'utf8');
      await expect.poll(state, { timeout: STATE_MILLISECONDS }).toContain(') Z ');
      const pids: number[] = [];
      for await (const file of processFiles('mountinfo')) {
        pids.push(file.pid);
      }
      expect(pids).toContain(process.pid);
      expect(pids).not.toContain(pid);
    } finally {
      shell.kill('SIGKILL');
    }
  });
});
