import { execFile } from 'node:child_process';
import { mkdir, readdir, readFile, stat, symlink, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, it } from 'vitest';
import { withFileLock, writeWhole, writeWholeSync } from './files.ts';
import { makeFolder } from '../test/support/folder.ts';

const FILES = new URL('./files.ts', import.meta.url).pathname;

interface TraceEvent {
  ph: string;
  name: string;
}

let folder: string;
let file: string;

beforeEach(() => {
  folder = makeFolder();
  file = join(folder, 'file');
});

/** Returns the system calls of a program that writes one file, in their order. */
async function systemCalls(statement: string): Promise<string[]> {
  const program = `import { writeWhole, writeWholeSync } from ${JSON.stringify(FILES)}; ${statement}`;
  const categories = ['--trace-event-categories', 'node.fs.sync,node.fs.async'];
  const log = join(folder, 'trace.json');
  const where = ['--trace-event-file-pattern', log];
  await promisify(execFile)(process.execPath, [
    ...categories,
    ...where,
    '--input-type=module',
    '--eval',
    program,
  ]);
  const { traceEvents } = JSON.parse(await readFile(log, 'utf8')) as { traceEvents: TraceEvent[] };
  const calls = traceEvents
    .filter(({ ph }) => ph.toUpperCase() === 'B')
    .map(({ name }) => name.split('.').at(-1) ?? '');
  return calls.filter((name) => ['write', 'fsync', 'rename'].includes(name));
}

describe('a file that is written as a whole', () => {
  it.each([
    ['asynchronously', 'await writeWhole'],
    ['at once', 'writeWholeSync'],
  ])('%s is synced to the disk before the rename, and the folder after it', async (_, call) => {
    const calls = await systemCalls(`${call}(${JSON.stringify(file)}, 'text')`);
    expect(calls).toEqual(['write', 'fsync', 'rename', 'fsync']);
    expect(await readFile(file, 'utf8')).toBe('text');
  });

  it('replaces the earlier file, and only its owner may read it', async () => {
    await writeWhole(file, 'one');
    writeWholeSync(file, 'two');
    expect(await readFile(file, 'utf8')).toBe('two');
    expect((await stat(file)).mode & 0o777).toBe(0o600);
    expect(await readdir(folder)).toEqual(['file']);
  });

  it('has the content of the last of several calls at once', async () => {
    const texts = Array.from({ length: 50 }, (_, number) => String(number).repeat(10_000));
    await Promise.all(texts.map((text) => writeWhole(file, text)));
    expect(await readFile(file, 'utf8')).toBe(texts.at(-1));
    expect(await readdir(folder)).toEqual(['file']);
  });

  it('replaces the temporary file of a process that was killed', async () => {
    await writeFile(`${file}.tmp`, 'half');
    await writeWhole(file, 'whole');
    expect(await readdir(folder)).toEqual(['file']);
  });

  it('does not go to a place that another user has prepared', async () => {
    const other = join(folder, 'other');
    await writeFile(other, 'mine', { mode: 0o644 });
    await symlink(other, `${file}.tmp`);
    await writeWhole(file, 'one');
    await symlink(other, `${file}.tmp`);
    writeWholeSync(file, 'two');
    expect([await readFile(file, 'utf8'), await readFile(other, 'utf8')]).toEqual(['two', 'mine']);
    await writeFile(`${file}.tmp`, '', { mode: 0o644 });
    await writeWhole(file, 'three');
    expect((await stat(file)).mode & 0o777).toBe(0o600);
  });

  it('that cannot be written leaves nothing, and does not prevent the next write', async () => {
    const missing = join(folder, 'none', 'file');
    await expect(writeWhole(missing, 'text')).rejects.toMatchObject({ code: 'ENOENT' });
    expect(() => writeWholeSync(missing, 'text')).toThrow('ENOENT');
    const taken = join(folder, 'taken');
    await mkdir(taken);
    expect(() => writeWholeSync(taken, 'a folder is there')).toThrow('EISDIR');
    const failing = writeWhole(taken, 'a folder is there');
    const next = writeWhole(file, 'text');
    await expect(failing).rejects.toMatchObject({ code: 'EISDIR' });
    await next;
    expect((await readdir(folder)).toSorted()).toEqual(['file', 'taken']);
  });
});

describe('withFileLock', () => {
  it('lets one caller work at a time, also after a failure, and leaves no file', async () => {
    const options = { staleMilliseconds: 60_000, signal: new AbortController().signal };
    let [running, most] = [0, 0];
    const work = async (fails: boolean) => {
      running += 1;
      most = Math.max(most, running);
      await readdir(folder);
      running -= 1;
      if (fails) {
        throw new Error('no');
      }
    };
    const path = join(folder, 'lock');
    const all = [true, false, false, true, false].map((fails) =>
      withFileLock(path, options, () => work(fails)),
    );
    const outcomes = await Promise.allSettled(all);
    expect([most, outcomes.filter(({ status }) => status === 'fulfilled').length]).toEqual([1, 3]);
    expect(await readdir(folder)).toEqual([]);
  });

  it('takes a lock that a killed process left, and waits for a younger one until the signal aborts', async () => {
    const path = join(folder, 'left');
    await writeFile(path, '');
    const options = { staleMilliseconds: 60_000, signal: AbortSignal.timeout(200) };
    await expect(withFileLock(path, options, () => Promise.resolve(1))).rejects.toThrow('timeout');
    const past = Date.now() / 1000 - 61;
    await utimes(path, past, past);
    const { signal } = new AbortController();
    expect(await withFileLock(path, { ...options, signal }, () => Promise.resolve(1))).toBe(1);
  });

  it('does not remove the lock of a process that took it over as stale', async () => {
    const path = join(folder, 'taken');
    const options = { staleMilliseconds: 60_000, signal: new AbortController().signal };
    const [first, second] = [setUpWork(), setUpWork()];
    const late = withFileLock(path, options, first.work);
    await first.begun;
    const past = Date.now() / 1000 - 61;
    await utimes(path, past, past);
    const next = withFileLock(path, options, second.work);
    await second.begun;
    first.end();
    await late;
    expect(await readdir(folder)).toContain('taken');
    second.end();
    await next;
    expect(await readdir(folder)).not.toContain('taken');
  });

  /** Sets up work that the test ends. */
  function setUpWork(): { work: () => Promise<void>; begun: Promise<void>; end: () => void } {
    const [begun, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const work = async () => {
      begun.resolve();
      await ended.promise;
    };
    return { work, begun: begun.promise, end: ended.resolve };
  }
});
