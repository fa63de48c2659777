import { appendFileSync, rmSync, statSync, truncateSync } from 'node:fs';
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ConsoleStore } from './store.ts';
import { TASK_LOG } from './input.ts';
import { type ConsoleReadOptions, STORE_FILES } from './records.ts';
import { listSegments, SEGMENT_BYTES, segmentName } from './logwriter.ts';
import { makeFolder } from '../../test/support/folder.ts';

const MEBIBYTE = 1024 * 1024;
/** Upper bound in bytes for the text that a slow follower gets. This bound is above the limit of the follower's queue, 256 KiB. */
const FOLLOWER_BYTES = 300 * 1024;

/** Appends bytes in the same way as a task. */
function appendAsTask(folder: string, bytes: string | Buffer): void {
  appendFileSync(join(folder, TASK_LOG), bytes);
}

/** Appends bytes in the same way as the log writer of a machine. */
function appendAsMachine(folder: string, bytes: string | Buffer): void {
  const last = listSegments(folder, 'serial').at(-1) ?? { start: 0, path: join(folder, 'serial.0.log') };
  const size = statSync(last.path, { throwIfNoEntry: false })?.size ?? 0;
  const isFull = size + bytes.length > SEGMENT_BYTES;
  appendFileSync(isFull ? join(folder, segmentName('serial', last.start + size)) : last.path, bytes);
  for (const { path } of listSegments(folder, 'serial').slice(0, -2)) {
    rmSync(path);
  }
}

describe.each([
  ['task', appendAsTask],
  ['machine', appendAsMachine],
] as const)('the console of a %s', (of, append) => {
  let folder: string;
  let now: Date;
  let store: ConsoleStore;

  beforeEach(() => {
    folder = makeFolder();
    now = new Date('2026-01-01T00:00:00.000Z');
    store = open();
  });

  afterEach(async () => {
    store.close();
  });

  function open(): ConsoleStore {
    return new ConsoleStore(folder, { of, logger: pino({ level: 'silent' }), clock: () => now });
  }

  function guestWrites(bytes: string | Buffer): void {
    append(folder, bytes);
  }

  async function read(options: ConsoleReadOptions = {}): Promise<string> {
    let text = '';
    for await (const piece of store.read(options)) {
      text += piece;
    }
    return text;
  }

  /** Returns the number of bytes that this process has read from all files. */
  async function bytesRead(): Promise<number> {
    const text = await readFile('/proc/self/io', 'utf8');
    return Number(/^rchar: (\d+)$/m.exec(text)?.[1]);
  }

  async function bytesOf(name: string): Promise<number> {
    return (await stat(join(folder, name))).size;
  }

  it('is empty for a machine that never ran', async () => {
    expect(await read()).toBe('');
  });

  it('returns the output of the guest, without carriage returns', async () => {
    guestWrites('one\r\ntwo\r\n');
    expect(await read()).toBe('one\ntwo\n');
    guestWrites('three\n');
    expect(await read()).toBe('one\ntwo\nthree\n');
  });

  it('keeps a character that came in two pieces', async () => {
    const bytes = Buffer.from('ü\n');
    guestWrites(bytes.subarray(0, 1));
    await read();
    guestWrites(bytes.subarray(1));
    expect(await read()).toBe('ü\n');
  });

  it('shows a prompt that has no line end after a moment, and joins what follows', async () => {
    guestWrites('login: ');
    expect(await read()).toBe('');
    now = new Date(now.getTime() + 2_000);
    expect(await read()).toBe('login: ');
    guestWrites('root\n');
    expect(await read()).toBe('login: root\n');
  });

  it('has the time of each line', async () => {
    guestWrites('first\n');
    await read();
    now = new Date('2026-01-01T00:01:00.000Z');
    guestWrites('second\n');
    expect(await read({ sinceTime: new Date('2026-01-01T00:00:30Z'), timestamps: true })).toBe(
      '2026-01-01T00:01:00.000Z second\n',
    );
  });

  it('gives the last lines, and no more bytes than asked', async () => {
    guestWrites('a\nb\nc\n');
    expect(await read({ tailLines: 2 })).toBe('b\nc\n');
    expect(await read({ tailLines: 0 })).toBe('');
    expect(await read({ limitBytes: 3 })).toBe('a\nb');
  });

  it('finds the last lines at any place in the files, also lines that came in pieces', async () => {
    const lines = Array.from({ length: 6_000 }, (_, number) => `${number} ${'x'.repeat((number * 37) % 60)}`);
    // This line is longer than a record may be, so it is stored in pieces.
    lines.splice(3_000, 0, 'y'.repeat(200_000));
    guestWrites(`${lines.join('\n')}\n`);
    for (const tailLines of [1, 2, 1_234, 2_999, 3_000, 3_001, 3_002, 6_001, 9_000]) {
      expect(await read({ tailLines })).toBe(`${lines.slice(-tailLines).join('\n')}\n`);
    }
    guestWrites('login: ');
    await read();
    now = new Date(now.getTime() + 2_000);
    expect(await read({ tailLines: 2 })).toBe(`${lines.at(-1)}\nlogin: `);
  });

  it('begins a line with its time once, for any pieces', async () => {
    store.start();
    const stop = new AbortController();
    let text = '';
    guestWrites('login: ');
    await read();
    now = new Date(now.getTime() + 2_000);
    for await (const piece of store.read({ follow: true, timestamps: true, signal: stop.signal })) {
      text += piece;
      if (text.endsWith('login: ')) {
        guestWrites('root\n');
      } else {
        stop.abort();
      }
    }
    expect(text).toMatch(/^\S+Z login: root\n$/);
  });

  it('a guest that writes nothing but line ends does not stop the console', async () => {
    guestWrites('\n'.repeat(300_000));
    guestWrites('the end\n');
    expect(await read({ tailLines: 1 })).toBe('the end\n');
  });

  it('goes on where an earlier agent stopped reading', async () => {
    guestWrites('one\n');
    await read();
    store.close();
    store = open();
    guestWrites('two\n');
    expect(await read()).toBe('one\ntwo\n');
  });

  it('stays bounded with the raw file, and keeps the newest output', async () => {
    const line = `${'x'.repeat(1023)}\n`;
    for (let piece = 0; piece < 24; piece += 1) {
      guestWrites(line.repeat(1024));
      await read({ tailLines: 0 });
    }
    guestWrites('the end\n');
    expect(await read({ tailLines: 1 })).toBe('the end\n');
    if (of === 'task') {
      expect(await bytesOf(TASK_LOG)).toBeLessThanOrEqual(MEBIBYTE);
    }
    const files = await readdir(join(folder, 'console'));
    expect(files).toHaveLength(3);
    expect(files).toEqual(expect.arrayContaining(['current', 'previous']));
    expect(await bytesOf('console/current')).toBeLessThanOrEqual(4 * MEBIBYTE);
    expect(await bytesOf('console/previous')).toBeLessThanOrEqual(4 * MEBIBYTE);
  });

  it('a guest that never ends its line does not fill the memory', async () => {
    guestWrites('y'.repeat(3 * 16 * 1024 + 5));
    // Only the last, incomplete piece of the line is still in memory.
    expect(await read()).toHaveLength(3 * 16 * 1024);
    now = new Date(now.getTime() + 2_000);
    expect(await read()).toHaveLength(3 * 16 * 1024 + 5);
  });

  it('follows until it is told to stop', async () => {
    store.start();
    guestWrites('before\n');
    const stop = new AbortController();
    const lines: string[] = [];
    for await (const line of store.read({ follow: true, signal: stop.signal })) {
      lines.push(line);
      if (lines.length === 1) {
        guestWrites('after\n');
      } else {
        stop.abort();
      }
    }
    expect(lines).toEqual(['before\n', 'after\n']);
  });

  it('a reader of the last line reads the end of a full store, not all of it', async () => {
    await mkdir(join(folder, 'console'));
    const line = '2026-01-01T00:00:00.000Z F \n';
    const full = line.repeat(Math.floor((4 * MEBIBYTE) / line.length));
    for (const name of STORE_FILES) {
      await writeFile(join(folder, 'console', name), full);
    }
    expect(await read({ tailLines: 1 })).toBe('\n');
    const before = await bytesRead();
    expect(await read({ tailLines: 1 })).toBe('\n');
    expect((await bytesRead()) - before).toBeLessThan(MEBIBYTE);
  });

  it('a follower that does not keep up loses the oldest lines, and does not fill the memory', async () => {
    guestWrites('begin\n');
    const follower = store.read({ follow: true })[Symbol.asyncIterator]();
    expect(await follower.next()).toMatchObject({ value: 'begin\n' });
    const line = `${'x'.repeat(99)}\n`;
    // The follower begins to listen with this call.
    const next = follower.next();
    guestWrites('first\n');
    await read({ tailLines: 0 });
    expect(await next).toMatchObject({ value: 'first\n' });
    guestWrites(line.repeat(20_000));
    guestWrites('the end\n');
    await read({ tailLines: 0 });
    const { value } = (await follower.next()) as { value: string };
    expect(value.endsWith(`${line}the end\n`)).toBe(true);
    expect(value.length).toBeLessThan(FOLLOWER_BYTES);
    await follower.return?.();
  });

  it('a follow ends with the machine', async () => {
    const following = read({ follow: true });
    store.close();
    expect(await following).toBe('');
  });
});

describe('the console, and agents that come and go', () => {
  const now = new Date('2026-01-01T00:00:00.000Z');
  let folder: string;
  let store: ConsoleStore;

  beforeEach(() => {
    folder = makeFolder();
    store = anotherAgent();
  });

  afterEach(async () => {
    store.close();
  });

  /** Opens a second store. The first store is not closed, as after a kill of the agent. */
  function anotherAgent(of: 'task' | 'machine' = 'machine'): ConsoleStore {
    return new ConsoleStore(folder, { of, logger: pino({ level: 'silent' }), clock: () => now });
  }

  async function read(): Promise<string> {
    let text = '';
    for await (const piece of store.read({})) {
      text += piece;
    }
    return text;
  }

  it('a follower gets a prompt that stands still as a line, because kubectl prints whole lines only', async () => {
    store = new ConsoleStore(folder, { of: 'machine', logger: pino({ level: 'silent' }) });
    store.start();
    appendAsMachine(folder, 'boot\nlogin: ');
    const stop = new AbortController();
    let text = '';
    for await (const piece of store.read({ follow: true, tailLines: 2, signal: stop.signal })) {
      text += piece;
      if (text.endsWith('login: \n')) {
        appendAsMachine(folder, 'root\n');
      } else if (text.endsWith('root\n')) {
        stop.abort();
      }
    }
    expect(text).toBe('boot\nlogin: \nroot\n');
    expect(await read()).toBe('boot\nlogin: root\n');
    store.close();
  });

  it.each([
    ['task', appendAsTask],
    ['machine', appendAsMachine],
  ] as const)('a line of a %s in the middle of which the agent was killed is whole', async (of, append) => {
    store = anotherAgent(of);
    append(folder, 'one\ntw');
    expect(await read()).toBe('one\n');
    store = anotherAgent(of);
    append(folder, 'o\n');
    expect(await read()).toBe('one\ntwo\n');
  });

  it.each([
    ['task', appendAsTask, 'offset'],
    ['machine', appendAsMachine, 'position'],
  ] as const)(
    'the console of a %s continues after a crash of the host that damaged its position',
    async (of, append, file) => {
      store = anotherAgent(of);
      append(folder, 'one\n');
      await read();
      store = anotherAgent(of);
      await writeFile(join(folder, 'console', file), '\0\0\0');
      append(folder, 'two\n');
      expect(await read()).toBe('one\none\ntwo\n');
    },
  );

  it('reports the size of output that was lost while no agent ran, and shows the newest', async () => {
    appendAsMachine(folder, 'one\nbegun');
    await read();
    store = anotherAgent();
    const line = `${'x'.repeat(1023)}\n`;
    for (let number = 0; number < 12 * 1024; number += 1) {
      appendAsMachine(folder, line);
    }
    const [first] = listSegments(folder, 'serial');
    const lines = (await read()).split('\n');
    const lost = (first?.start ?? 0) - 'one\n'.length;
    const notice = `[${lost} bytes of the console were lost, because the agent did not read them in time, or the host crashed]`;
    expect(lines.filter((text) => text !== line.trimEnd())).toEqual(['one', '', notice, '']);
    expect(lines.length).toBeGreaterThan(4 * 1024);
  });

  it('goes on after a file that a crash of the host cut short', async () => {
    const half = 'x'.repeat(SEGMENT_BYTES / 2 - 1);
    for (const text of ['1', '2', '3']) {
      appendAsMachine(folder, `${text}${half.slice(1)}\n`);
    }
    const [first, second] = listSegments(folder, 'serial');
    truncateSync(first?.path ?? '', 1);
    expect(second?.start).toBe(SEGMENT_BYTES);
    expect(await read()).toMatch(/^1\n\[4194303 bytes .*\n3x+\n$/);
  });

  it('goes on at the end of a file that a crash of the host cut short after it was read', async () => {
    appendAsMachine(folder, 'one\ntwo\n');
    await read();
    truncateSync(join(folder, 'serial.0.log'), 'one\n'.length);
    store = anotherAgent();
    await read();
    appendAsMachine(folder, 'three\n');
    expect(await read()).toBe('one\ntwo\nthree\n');
  });
});
