import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Level, pino } from 'pino';
import { limitTime } from './exec.ts';
import { followLevel } from './log.ts';
import { makeFolder } from '../test/support/folder.ts';

const LOGGER = `
const { programLogger } = await import(${JSON.stringify(join(import.meta.dirname, 'log.ts'))});
const logger = programLogger({ program: 'berth-test' });
`;
/** Program that logs for a moment, also more than may wait, and then ends as the programs of Berth do. */
const PROGRAM = `${LOGGER}
for (let number = 0; number < 40; number += 1) {
  logger.info({ number, text: 'x'.repeat(number % 4 === 1 ? 200_000 : 10) }, 'a line');
  await new Promise((resolve) => setTimeout(resolve, 5));
}
process.exit(7);
`;
/** Program that ends directly after its only lines, while other work delays each write that needs a thread. */
const SHORT_PROGRAM = `${LOGGER}
const { pbkdf2 } = await import('node:crypto');
pbkdf2('password', 'salt', 200_000, 64, 'sha512', () => undefined);
for (let number = 0; number < 40; number += 1) {
  logger.info({ number }, 'a line');
}
logger.flush();
process.exit(7);
`;
/** A program that waits for its log never ends. */
const LIMIT_MILLISECONDS = 30_000;

/** Runs a program with this file as its standard output; with a pipe that nobody reads if `output` is undefined. */
async function run(program: string, output: string | undefined, ...args: string[]): Promise<unknown> {
  const descriptor = output === undefined ? undefined : openSync(output, 'w');
  const child = spawn(process.execPath, ['--input-type=module', '--eval', program, ...args], {
    stdio: ['ignore', descriptor ?? 'pipe', 'inherit'],
    env: { ...process.env, UV_THREADPOOL_SIZE: '1' },
  });
  limitTime(child, LIMIT_MILLISECONDS);
  child.stdout?.destroy();
  if (descriptor !== undefined) {
    closeSync(descriptor);
  }
  return await once(child, 'exit');
}

const PROGRAMS = [
  ['that ends later', PROGRAM],
  ['that ends directly after its lines', SHORT_PROGRAM],
] as const;

it.each(PROGRAMS)('the log of a program %s has all its lines in their order', async (_, program) => {
  const folder = makeFolder();
  const file = join(folder, 'log');
  expect(await run(program, file)).toEqual([7, null]);
  const lines = (await readFile(file, 'utf8')).trimEnd().split('\n');
  expect(lines.map((line) => (JSON.parse(line) as { number: number }).number)).toEqual([...lines.keys()]);
  expect(lines).toHaveLength(40);
});

it('the lines of a log name the time, the level and the program in words, and an object by its name', async () => {
  const folder = makeFolder();
  const file = join(folder, 'log');
  await run(`${LOGGER}logger.child({ namespace: 'n', name: 'a' }).warn({ size: 1 }, 'a line');`, file);
  const line = await readFile(file, 'utf8');
  const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/) as string;
  const expected = {
    level: 'warn',
    time,
    program: 'berth-test',
    namespace: 'n',
    name: 'a',
    size: 1,
    msg: 'a line',
  };
  const read: unknown = JSON.parse(line);
  expect(read).toEqual(expected);
  expect(`${JSON.stringify(read)}\n`).toBe(line);
});

/** Program whose level follows a file. Its timers run when it wants. It logs with loggers that it made before the change. */
const FOLLOWING_PROGRAM = `
const { mock } = await import('node:test');
mock.timers.enable({ apis: ['setInterval'] });
const { readFileSync, writeFileSync } = await import('node:fs');
const { programLogger } = await import(${JSON.stringify(join(import.meta.dirname, 'log.ts'))});
const [, file] = process.argv;
writeFileSync(file, 'info');
const read = () => readFileSync(file, 'utf8');
const logger = programLogger({ program: 'berth-test', level: 'info', levelFile: { file, read } });
const child = logger.child({ part: 'a' });
for (const level of ['info', 'debug', 'error', 'warn']) {
  writeFileSync(file, level);
  mock.timers.tick(10_000);
  for (const one of ['debug', 'info', 'error']) {
    child[one]({ in: level }, 'a line');
  }
}
process.exit(7);
`;

it('the level of a log follows the configuration file, also that of loggers for parts of the program', async () => {
  const folder = makeFolder();
  const file = join(folder, 'log');
  expect(await run(FOLLOWING_PROGRAM, file, join(folder, 'config'))).toEqual([7, null]);
  const text = (await readFile(file, 'utf8')).trimEnd();
  const lines = text
    .split('\n')
    .map((line) => JSON.parse(line) as { level: string; in?: string; logLevel?: string });
  expect(lines.map(({ level, in: within, logLevel }) => `${level} ${within ?? `to ${logLevel}`}`)).toEqual([
    'info info',
    'error info',
    'info to debug',
    'debug debug',
    'info debug',
    'error debug',
    'info to error',
    'error error',
    'error warn',
  ]);
});

describe.each(PROGRAMS)('a program %s', (_, program) => {
  it.runIf(existsSync('/dev/full'))('continues and ends although its log is on a full disk', async () => {
    expect(await run(program, '/dev/full')).toEqual([7, null]);
  });

  it('continues and ends although nobody reads its log any more', async () => {
    expect(await run(program, undefined)).toEqual([7, null]);
  });
});

describe('followLevel', () => {
  /** Time between two looks at the file, in milliseconds. */
  const LOOK_MILLISECONDS = 10_000;

  let folder: string;
  let file: string;
  /** Level in the file, or the error of a file that is not usable. */
  let content: Level | Error;
  const set = vi.fn<(level: Level) => void>();
  const read = vi.fn(() => {
    if (content instanceof Error) {
      throw content;
    }
    return content;
  });
  const warnings: unknown[] = [];

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['setInterval'] });
    folder = makeFolder();
    file = join(folder, 'config.yaml');
    write('info');
    set.mockReset();
    read.mockClear();
    warnings.length = 0;
    followLevel(
      { file, read },
      pino({}, { write: (line: string) => void warnings.push(JSON.parse(line)) }),
      set,
    );
  });

  afterEach(() => {
    vi.useRealTimers();
  });

  function write(next: Level | Error): void {
    content = next;
    writeFileSync(file, String(next));
  }

  function look(): void {
    vi.advanceTimersByTime(LOOK_MILLISECONDS);
  }

  it('sets the level in a changed file within 10 s, and reads nothing while the file is as it was', () => {
    look();
    expect(read).not.toHaveBeenCalled();
    write('debug');
    vi.advanceTimersByTime(LOOK_MILLISECONDS - 1);
    expect(set).not.toHaveBeenCalled();
    vi.advanceTimersByTime(1);
    expect(set).toHaveBeenCalledExactlyOnceWith('debug');
    look();
    expect(read).toHaveBeenCalledOnce();
  });

  it('keeps the level while the file is not usable, and tells so once', () => {
    write(new Error('config.yaml is not usable:\n  logLevel: Invalid option'));
    look();
    look();
    expect(set).not.toHaveBeenCalled();
    expect(warnings).toMatchObject([{ reason: 'config.yaml is not usable:\n  logLevel: Invalid option' }]);
    write('warn');
    look();
    expect(set).toHaveBeenCalledExactlyOnceWith('warn');
  });

  it('keeps the level while the file is missing, and follows it when it is back', () => {
    rmSync(file);
    content = new Error('no such file');
    look();
    look();
    expect(warnings).toHaveLength(1);
    write('error');
    look();
    expect(set).toHaveBeenCalledExactlyOnceWith('error');
  });
});
