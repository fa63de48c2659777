import { appendFileSync } from 'node:fs';
import { mkdtemp, readdir, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ConsoleStore } from './console.ts';
import type { ConsoleReadOptions } from './consoleread.ts';

const MEBIBYTE = 1024 * 1024;

describe('the console', () => {
  let folder: string;
  let now: Date;
  let store: ConsoleStore;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-console-'));
    now = new Date('2026-01-01T00:00:00.000Z');
    store = open();
  });

  afterEach(async () => {
    store.close();
    await rm(folder, { recursive: true, force: true });
  });

  function open(): ConsoleStore {
    return new ConsoleStore(folder, { logger: pino({ level: 'silent' }), clock: () => now });
  }

  function guestWrites(text: string): void {
    appendFileSync(join(folder, 'serial.log'), text);
  }

  async function read(options: ConsoleReadOptions = {}): Promise<string> {
    let text = '';
    for await (const piece of store.read(options)) text += piece;
    return text;
  }

  async function bytesOf(name: string): Promise<number> {
    return (await stat(join(folder, name))).size;
  }

  it('is empty for a machine that never ran', async () => {
    expect(await read()).toBe('');
  });

  it('gives back what the guest wrote, without carriage returns', async () => {
    guestWrites('one\r\ntwo\r\n');
    expect(await read()).toBe('one\ntwo\n');
    guestWrites('three\n');
    expect(await read()).toBe('one\ntwo\nthree\n');
  });

  it('keeps a character that came in two pieces', async () => {
    const bytes = Buffer.from('ü\n');
    appendFileSync(join(folder, 'serial.log'), bytes.subarray(0, 1));
    await read();
    appendFileSync(join(folder, 'serial.log'), bytes.subarray(1));
    expect(await read()).toBe('ü\n');
  });

  it('shows a prompt that has no line end after a moment, and joins what follows', async () => {
    guestWrites('login: ');
    await read();
    now = new Date(now.getTime() + 2_000);
    expect(await read()).toBe('login: ');
    guestWrites('root\n');
    expect(await read()).toBe('login: root\n');
  });

  it('knows when a line was seen', async () => {
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

  it('finds the last lines wherever in the files they begin, also those that came in pieces', async () => {
    const lines = Array.from({ length: 6_000 }, (_, number) => `${number} ${'x'.repeat((number * 37) % 60)}`);
    // Longer than a record may be, so stored in pieces.
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

  it('begins a line with its time once, whatever pieces it came in', async () => {
    store.start();
    const stop = new AbortController();
    let text = '';
    guestWrites('login: ');
    await read();
    now = new Date(now.getTime() + 2_000);
    for await (const piece of store.read({ follow: true, timestamps: true, signal: stop.signal })) {
      text += piece;
      if (text.endsWith('login: ')) guestWrites('root\n');
      else stop.abort();
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

  it('stays bounded, raw file included, and keeps the newest', async () => {
    const line = `${'x'.repeat(1023)}\n`;
    for (let piece = 0; piece < 24; piece += 1) {
      guestWrites(line.repeat(1024));
      await read({ tailLines: 0 });
    }
    guestWrites('the end\n');
    expect(await read({ tailLines: 1 })).toBe('the end\n');
    expect(await bytesOf('serial.log')).toBeLessThanOrEqual(MEBIBYTE);
    const files = await readdir(join(folder, 'console'));
    expect(files.sort()).toEqual(['current', 'offset', 'previous']);
    expect(await bytesOf('console/current')).toBeLessThanOrEqual(4 * MEBIBYTE);
    expect(await bytesOf('console/previous')).toBeLessThanOrEqual(4 * MEBIBYTE);
  });

  it('a guest that never ends its line does not fill the memory', async () => {
    guestWrites('y'.repeat(3 * 16 * 1024 + 5));
    await read();
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
      if (lines.length === 1) guestWrites('after\n');
      else stop.abort();
    }
    expect(lines).toEqual(['before\n', 'after\n']);
  });

  it('a follow ends with the machine', async () => {
    const following = read({ follow: true });
    store.close();
    expect(await following).toBe('');
  });
});
