import { mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { withFileLock } from './filelock.ts';

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-lock-'));
});

afterAll(async () => await rm(folder, { recursive: true, force: true }));

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
