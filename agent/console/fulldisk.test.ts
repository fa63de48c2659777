import * as fs from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { ConsoleStore } from './store.ts';
import { makeFolder } from '../../test/support/folder.ts';

vi.mock(import('node:fs'), { spy: true });

const { appendFileSync, openSync, writeFileSync } = await vi.importActual<typeof fs>('node:fs');

let folder: string;
let store: ConsoleStore;
/** Lines of the agent's log. */
let logged: string[];

beforeEach(() => {
  folder = makeFolder();
  logged = [];
  store = open('machine');
});

afterEach(async () => {
  store.close();
  vi.resetAllMocks();
});

function open(of: 'machine' | 'task'): ConsoleStore {
  return new ConsoleStore(folder, { of, logger: pino({}, { write: (line) => logged.push(line) }) });
}

/** Fills the disk: only the first half of a text still finds room. */
function fillDisk(): void {
  vi.mocked(fs.appendFileSync).mockImplementation((path, text) => {
    appendFileSync(path, String(text).slice(0, String(text).length / 2));
    throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' });
  });
}

/** Fills the disk, but the last block of the store still has room. */
function fillDiskBesideStore(): void {
  vi.mocked(fs.writeFileSync).mockImplementation((path, ...rest) => {
    // This function also works for appendFileSync, with a descriptor as its path.
    if (typeof path === 'string' && path.endsWith('.tmp')) {
      throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' });
    }
    writeFileSync(path, ...rest);
  });
}

function freeDisk(): void {
  vi.mocked(fs.appendFileSync).mockImplementation(appendFileSync);
  vi.mocked(fs.writeFileSync).mockImplementation(writeFileSync);
}

function guestWrites(text: string): void {
  appendFileSync(join(folder, 'serial.0.log'), text);
}

async function read(): Promise<string> {
  let text = '';
  for await (const piece of store.read({})) {
    text += piece;
  }
  return text;
}

it('has each line once when the disk has room again, however often a line found half of its room', async () => {
  freeDisk();
  guestWrites('before\n');
  expect(await read()).toBe('before\n');
  guestWrites('one\ntwo\nthree\nfour\n');
  fillDisk();
  expect([await read(), await read()]).toEqual(['before\n', 'before\n']);
  freeDisk();
  expect(await read()).toBe('before\none\ntwo\nthree\nfour\n');
});

it('tells a full disk once, and again when the disk is full the next time', async () => {
  guestWrites('one\n');
  for (const [times, change] of [
    [3, fillDisk],
    [1, freeDisk],
    [3, fillDisk],
  ] as const) {
    change();
    for (let time = 0; time < times; time += 1) {
      guestWrites('more\n');
      await read();
    }
  }
  expect(logged).toHaveLength(2);
});

it.each([
  ['task', 'serial.log'],
  ['machine', 'serial.0.log'],
] as const)('has each line of a %s once if only the store had room', async (of, file) => {
  store = open(of);
  const stored: string[] = [];
  for (const change of [freeDisk, fillDiskBesideStore, fillDisk, freeDisk]) {
    change();
    appendFileSync(join(folder, file), `${change.name}\n`);
    await read();
    stored.push(await read());
  }
  const [first, second] = ['freeDisk\n', 'fillDiskBesideStore\n'];
  expect(stored).toEqual([first, first + second, first + second, `${first}${second}fillDisk\n${first}`]);
  expect(logged).toHaveLength(1);
});

it('loses no output if a file cannot be opened in the middle of a long output', async () => {
  const lines = 'a line of the guest\n'.repeat(2_000);
  guestWrites(lines);
  let opened = 0;
  vi.mocked(fs.openSync).mockImplementation((path, ...rest) => {
    const isOutput = String(path).endsWith('serial.0.log');
    opened += isOutput ? 1 : 0;
    if (isOutput && opened === 2) {
      throw Object.assign(new Error('too many open files'), { code: 'EMFILE' });
    }
    return openSync(path, ...rest);
  });
  expect(await read()).toBe('');
  vi.mocked(fs.openSync).mockImplementation(openSync);
  expect(await read()).toBe(lines);
});
