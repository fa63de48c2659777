import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { LockedError, lockDataDirectory } from './lock.ts';

let directory: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-lock-'));
});

afterEach(() => {
  rmSync(directory, { recursive: true });
});

test('a second agent in the same data directory is refused, with the pid of the first', () => {
  const unlock = lockDataDirectory(directory);
  expect(() => lockDataDirectory(directory)).toThrow(
    new LockedError(`an agent with pid ${process.pid} already uses ${directory}`),
  );
  unlock();
  lockDataDirectory(directory)();
  expect(existsSync(join(directory, 'agent.lock'))).toBe(false);
});

test('the lock of an agent that was killed is taken over', async () => {
  const child = spawn(process.execPath, ['-e', '']);
  await once(child, 'exit');
  const file = join(directory, 'agent.lock');
  writeFileSync(file, JSON.stringify({ pid: child.pid, startTime: '1' }));
  lockDataDirectory(directory);
  expect(readFileSync(file, 'utf8')).toContain(`"pid":${process.pid},`);
});

test('a pid that another process has by now does not hold the lock', () => {
  writeFileSync(join(directory, 'agent.lock'), JSON.stringify({ pid: process.pid, startTime: '1' }));
  expect(lockDataDirectory(directory)).not.toThrow();
});

test('an empty lock file, left by a full disk, holds nothing', () => {
  writeFileSync(join(directory, 'agent.lock'), '');
  expect(lockDataDirectory(directory)).not.toThrow();
});
