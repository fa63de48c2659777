import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { startTimeOf } from '../cluster/processes.ts';
import { writeOwner } from '../cluster/state.ts';
import type { Mutant } from './definitions.ts';
import { unless } from '../../test/support/unless.ts';
import { MutantCopy, removeLeftCopies } from './copy.ts';

const LINUX = process.platform === 'linux' ? undefined : 'only Linux says where a process works';
const MUTANT: Mutant = {
  id: 'wrong',
  breaks: 'It is wrong.',
  text: 'right',
  becomes: 'wrong',
  project: 'unit',
  test: 'a.test.ts',
};

let folders: string[];
let processes: ChildProcess[];
let source: string;

function makeFolder(prefix: string): string {
  const folder = mkdtempSync(join(realpathSync(tmpdir()), prefix));
  folders.push(folder);
  return folder;
}

/** Starts a process in its own session, like the processes of a cluster. `ended` resolves with the signal that ended it. */
function runIn(cwd: string): { ended: Promise<unknown[]> } {
  const child = spawn('sleep', ['600'], { cwd, detached: true, stdio: 'ignore' });
  processes.push(child);
  return { ended: once(child, 'exit') };
}

beforeEach(() => {
  folders = [];
  processes = [];
  source = makeFolder('berth-source-');
  execFileSync('git', ['init', '--quiet'], { cwd: source });
  mkdirSync(join(source, 'base'));
  writeFileSync(join(source, 'base', 'a.ts'), 'right');
});

afterEach(() => {
  processes.forEach((child) => child.kill('SIGKILL'));
  folders.forEach((folder) => rmSync(folder, { recursive: true, force: true }));
});

describe('a copy for mutants', unless(LINUX), () => {
  it('has a mutant while its tests run, and nothing of them runs on', async () => {
    await using copy = await MutantCopy.of(source);
    const text = (): string => readFileSync(join(copy.root, 'base', 'a.ts'), 'utf8');
    const { left, during } = await copy.with(MUTANT, async () => {
      // Changes of the work tree during the run have no effect on the copy.
      writeFileSync(join(source, 'base', 'a.ts'), 'other');
      return { left: runIn(copy.root), during: text() };
    });
    expect(during).toBe('wrong');
    expect(await left.ended).toEqual([null, 'SIGKILL']);
    expect(text()).toBe('right');
  });

  it('ends with all that runs in it', async () => {
    const copy = await MutantCopy.of(source);
    const { ended } = runIn(join(copy.root, 'base'));
    await copy[Symbol.asyncDispose]();
    expect(await ended).toEqual([null, 'SIGKILL']);
    expect(existsSync(copy.root)).toBe(false);
  });

  it('of a killed run is removed with all that runs in it, and no other copy is removed', async () => {
    const [left, other] = [makeFolder('berth-mutants-'), makeFolder('berth-mutants-')];
    const startTime = (await startTimeOf(process.pid)) ?? '';
    writeOwner(left, { pid: process.pid, startTime: 'of another' });
    writeOwner(other, { pid: process.pid, startTime });
    const [inLeft, inOther] = [runIn(left), runIn(other)];
    await removeLeftCopies();
    expect(await inLeft.ended).toEqual([null, 'SIGKILL']);
    expect([left, other].map((folder) => existsSync(folder))).toEqual([false, true]);
    expect(processes[1]?.signalCode).toBe(null);
    processes[1]?.kill('SIGTERM');
    expect(await inOther.ended).toEqual([null, 'SIGTERM']);
  });
});
