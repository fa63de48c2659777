import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { writeWhole, writeWholeSync } from './files.ts';

const FILES = new URL('./files.ts', import.meta.url).pathname;

interface TraceEvent {
  ph: string;
  name: string;
}

let folder: string;
let file: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-files-'));
  file = join(folder, 'file');
});

afterEach(async () => {
  await rm(folder, { recursive: true });
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
