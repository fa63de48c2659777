import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, it } from 'vitest';
import { makeFolder } from '../../../test/support/folder.ts';
import type { MachineState } from '../driver.ts';
import { TartCopies } from './copies.ts';

const STOPPED: MachineState = { kind: 'stopped' };
const { signal } = new AbortController();
const onProgress = (): void => undefined;

let bundle: string;
let target: string;
let copies: TartCopies;

beforeEach(() => {
  bundle = makeFolder();
  target = join(bundle, 'copy', 'disk.raw');
  mkdirSync(join(bundle, 'copy'));
  writeFileSync(join(bundle, 'disk.img'), 'disk');
  writeFileSync(join(bundle, 'config.json'), '{}');
  writeFileSync(join(bundle, 'nvram.bin'), 'variables');
  copies = new TartCopies();
});

/** Begins a copy of a machine whose state is known only later. */
function begin(state: Promise<MachineState>) {
  const copy = copies.run({ bundle, inspect: async () => await state }, { target, signal, onProgress });
  copy.catch(() => undefined);
  return copy;
}

it('copies the disk of a machine that is off, and the files beside it', async () => {
  const machine = { config: join(bundle, 'copy', 'config'), variables: join(bundle, 'copy', 'variables') };
  const options = { target, machine, signal, onProgress };
  const inspect = async () => await Promise.resolve(STOPPED);
  expect(await copies.run({ bundle, inspect }, options)).toEqual({
    consistency: 'Stopped',
    virtualSizeBytes: 4,
    machine,
  });
  const contents = [target, machine.config, machine.variables].map((path) => readFileSync(path, 'utf8'));
  expect(contents).toEqual(['disk', '{}', 'variables']);
});

it.each<[MachineState['kind'], MachineState, string]>([
  ['suspended', { kind: 'suspended' }, 'Crash'],
  ['exited', { kind: 'exited', reason: 'Crashed', message: '' }, 'Crash'],
  ['exited', { kind: 'exited', reason: 'GuestShutdown', message: '' }, 'Stopped'],
])('a copy of a machine that is %s is as consistent as its disk', async (_, state, consistency) => {
  expect(await begin(Promise.resolve(state))).toMatchObject({ consistency });
});

it('refuses a machine that runs, does not exist, or has lost its files, and leaves no copy', async () => {
  const running: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };
  await expect(begin(Promise.resolve(running))).rejects.toMatchObject({
    reason: 'CopyFailed',
    message: expect.stringContaining('Stop the VM') as string,
  });
  await expect(begin(Promise.resolve({ kind: 'absent' }))).rejects.toMatchObject({ reason: 'NoMachine' });
  bundle = join(bundle, 'none');
  await expect(begin(Promise.resolve(STOPPED))).rejects.toMatchObject({ reason: 'CopyFailed' });
  expect(existsSync(target)).toBe(false);
});

it('lets a start wait for a copy, unless the start is no longer wanted', async () => {
  const state = Promise.withResolvers<MachineState>();
  const copy = begin(state.promise);
  const done: string[] = [];
  const unwanted = new AbortController();
  const left = copies.exclusively(async () => await Promise.resolve(done.push('unwanted')), unwanted.signal);
  const start = copies.exclusively(async () => await Promise.resolve(done.push('start')), signal);
  unwanted.abort(new Error('not wanted'));
  await expect(left).rejects.toThrow('not wanted');
  expect(done).toEqual([]);
  state.resolve(STOPPED);
  await copy;
  await start;
  expect(done).toEqual(['start']);
});

it('ends a copy when the machine is deleted, and lets the next copy begin', async () => {
  const state = Promise.withResolvers<MachineState>();
  const copy = begin(state.promise);
  const interrupted = copies.interrupt('The machine was deleted');
  state.resolve(STOPPED);
  await expect(copy).rejects.toMatchObject({ reason: 'Interrupted', message: 'The machine was deleted' });
  await interrupted;
  expect(existsSync(target)).toBe(false);
  expect(await begin(Promise.resolve(STOPPED))).toMatchObject({ virtualSizeBytes: 4 });
});
