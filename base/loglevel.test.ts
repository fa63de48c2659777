import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Level } from 'pino';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { followLevel } from './loglevel.ts';

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
  folder = mkdtempSync(join(tmpdir(), 'berth-level-'));
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
  rmSync(folder, { recursive: true });
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
