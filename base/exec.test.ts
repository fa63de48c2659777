import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, open, readFile, symlink, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { isMissing } from './errors.ts';
import { findProgram, limitTime, ProgramError, run, start } from './exec.ts';
import { makeFolder } from '../test/support/folder.ts';

/** Time limit of programs in this file. They end at once, but a busy machine may need longer. */
const SECONDS_30 = { timeoutMilliseconds: 30_000 };

async function failureOf(work: Promise<unknown>): Promise<ProgramError> {
  const error = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (!(error instanceof ProgramError)) {
    throw new Error(`expected a ProgramError, got ${String(error)}`);
  }
  return error;
}

test('returns the output of a program, and gives it its input, folder and environment', async () => {
  expect(await run('cat', [], { ...SECONDS_30, input: 'é\n' })).toBe('é\n');
  const environment = { PATH: process.env['PATH'], LC_ALL: 'C' };
  expect(await run('pwd', [], { ...SECONDS_30, folder: '/', environment })).toBe('/\n');
  expect(await run('env', [], { ...SECONDS_30, environment: { ...environment, A: 'b' } })).toContain('A=b');
});

test('a program that ends before it has read its input reports its reason', async () => {
  const input = 'x'.repeat(1024 * 1024);
  const error = await failureOf(
    run('sh', ['-c', 'echo no >&2; exit 3'], { ...SECONDS_30, input, name: 'it' }),
  );
  expect(error).toMatchObject({ message: 'it ended with code 3: no', exitCode: 3, lastOutput: 'no' });
});

test('a time limit kills a program, and leaves no timer of a program that could not be started', async () => {
  const late = spawn('sleep', ['60']);
  limitTime(late, 50);
  expect(await once(late, 'exit')).toEqual([null, 'SIGKILL']);
  const script = `import { spawn } from 'node:child_process';
    import { limitTime } from ${JSON.stringify(join(import.meta.dirname, 'exec.ts'))};
    const child = spawn('/no/such/program');
    limitTime(child, 60_000);
    child.once('error', ({ code }) => console.log(code));`;
  const output = await run(process.execPath, ['--input-type=module', '--eval', script], SECONDS_30);
  expect(output).toBe('ENOENT\n');
});

test('distinguishes a program that is not installed from one that failed', async () => {
  expect(isMissing(await failureOf(run('/no/such/program', [], SECONDS_30)))).toBe(true);
  expect(isMissing(await failureOf(run('false', [], SECONDS_30)))).toBe(false);
});

test("keeps the end of a program's error output", async () => {
  const script = 'i=0; while [ $i -lt 5000 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 1';
  const { lastOutput } = await failureOf(run('sh', ['-c', script], SECONDS_30));
  expect(lastOutput.length).toBeLessThanOrEqual(2_000);
  expect(lastOutput.endsWith('line 4999')).toBe(true);
});

test('is killed at its deadline, at its signal and at its limit of output', async () => {
  const late = await failureOf(run('sleep', ['60'], { timeoutMilliseconds: 50 }));
  const message = 'sleep did not end within 50 ms';
  expect(late).toMatchObject({ message, exitCode: undefined, exceeded: 'time' });
  const end = new AbortController();
  const stopped = run('sleep', ['60'], { timeoutMilliseconds: undefined, signal: end.signal });
  end.abort(new Error('enough'));
  await expect(stopped).rejects.toThrow('enough');
  await expect(run('sleep', ['60'], { ...SECONDS_30, signal: end.signal })).rejects.toThrow('enough');
  const began = performance.now();
  const script = 'head -c 100000 /dev/zero; exec sleep 60';
  const endless = await failureOf(run('sh', ['-c', script], { ...SECONDS_30, outputLimitBytes: 1000 }));
  expect(endless).toMatchObject({ message: 'sh wrote more than 1000 bytes', exceeded: 'output' });
  expect(performance.now() - began).toBeLessThan(SECONDS_30.timeoutMilliseconds / 2);
});

test('a killed program is not waited for longer because a child of it holds its output', async () => {
  const script = 'sleep 60 & echo $!; wait';
  const { output, ended, end } = start('sh', ['-c', script]);
  const [pid] = (await once(output, 'data')) as [Buffer];
  try {
    const began = performance.now();
    end();
    const error = await failureOf(ended);
    expect(error).toMatchObject({ message: 'sh ended with SIGKILL', exceeded: undefined });
    expect(performance.now() - began).toBeLessThan(SECONDS_30.timeoutMilliseconds);
  } finally {
    process.kill(Number(pid.toString()), 'SIGKILL');
  }
});

test('an ended program is not waited for past its deadline because a child of it holds its output', async () => {
  const { output, ended } = start('sh', ['-c', 'sleep 60 & echo $!'], { timeoutMilliseconds: 2_000 });
  const [pid] = (await once(output, 'data')) as [Buffer];
  try {
    await expect(ended).resolves.toBeUndefined();
  } finally {
    process.kill(Number(pid.toString()), 'SIGKILL');
  }
});

test('a process without free descriptors gets an error, and goes on', async () => {
  const script = `
    import { openSync } from 'node:fs';
    import { run } from '${import.meta.dirname}/exec.ts';
    const limits = { timeoutMilliseconds: 30_000 };
    try { for (;;) openSync('/dev/null'); } catch {}
    await run('true', [], limits).catch((error) => process.stdout.write(error.message));
  `;
  const limited = ['-c', 'ulimit -n 64; exec "$0" --input-type=module -e "$1"', process.execPath, script];
  expect(await run('sh', limited, SECONDS_30)).toMatch(/^true cannot be executed: spawn (true )?EMFILE/);
});

test('reads the given files while its output is read', async () => {
  const file = await open(import.meta.filename);
  try {
    const { output, ended } = start('cat', ['/proc/self/fd/3'], { files: [file] });
    const text = Buffer.concat(await output.toArray()).toString('utf8');
    await ended;
    expect(text).toBe(await readFile(import.meta.filename, 'utf8'));
  } finally {
    await file.close();
  }
});

const NAME = 'berth-test-program';

let folder: string;

beforeEach(async () => {
  folder = makeFolder();
  await mkdir(join(folder, 'bin'));
  await program(join(folder, 'bin', NAME));
});

afterEach(async () => {
  vi.unstubAllEnvs();
});

async function program(path: string, mode = 0o755): Promise<void> {
  await writeFile(path, '#!/bin/sh\n');
  await chmod(path, mode);
}

test.each<[string, (entry: string) => Promise<unknown> | string]>([
  ['a file', (entry) => program(entry)],
  ['missing', (entry) => entry],
  ['a link to itself', (entry) => symlink(entry, entry)],
  ['a name that is too long', (entry) => `${entry}${'x'.repeat(300)}`],
  ['a path that is too long', (entry) => `${entry}${'/x'.repeat(5000)}`],
  ['empty', () => ''],
  [
    'a folder with a folder of that name',
    async (entry) => {
      await mkdir(join(entry, NAME), { recursive: true });
    },
  ],
  [
    'a folder with a file that is no program',
    async (entry) => {
      await mkdir(entry);
      await program(join(entry, NAME), 0o644);
    },
  ],
  [
    'a folder with a link to nothing',
    async (entry) => {
      await mkdir(entry);
      await symlink('/nonexistent', join(entry, NAME));
    },
  ],
])('an entry of PATH that is %s is skipped', async (_, make) => {
  const entry = join(folder, 'entry');
  const made = await make(entry);
  vi.stubEnv('PATH', [typeof made === 'string' ? made : entry, join(folder, 'bin')].join(delimiter));
  expect(await findProgram(NAME)).toBe(join(folder, 'bin', NAME));
});

test('further folders come last, and a program that is nowhere is not found', async () => {
  vi.stubEnv('PATH', '/nonexistent');
  expect(await findProgram(NAME, [join(folder, 'bin')])).toBe(join(folder, 'bin', NAME));
  expect(await findProgram(NAME)).toBeUndefined();
});
