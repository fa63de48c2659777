import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Interrupted } from './errors.ts';
import { readPassword } from './prompt.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';

let keys: PassThrough;
/** Whether the terminal is in raw mode. It is undefined before the first change. */
let isRaw: boolean | undefined;
/** What the command writes, each with the raw mode at this time. */
let shown: [text: string, isRaw: boolean | undefined][];

beforeEach(() => {
  isRaw = undefined;
  shown = [];
  keys = new PassThrough();
  const terminal = { isTTY: true, setRawMode: (raw: boolean) => void (isRaw = raw) };
  const stdin = Object.assign(keys, terminal) as unknown as typeof process.stdin;
  vi.spyOn(process, 'stdin', 'get').mockReturnValue(stdin);
});

afterEach(() => vi.restoreAllMocks());

async function ask({ signal } = new AbortController()): Promise<string> {
  const err = (text: string) => void shown.push([text, isRaw]);
  return await readPassword(makeTerminal({ out: err, err, isForPeople: true, signal }), false);
}

it('returns the typed text without the characters that were taken back', async () => {
  const asked = ask();
  keys.write('pas');
  keys.write('x\u007fs\b\bss wort\u007fd\rrest');
  expect(isRaw).toBe(true);
  expect(await asked).toBe('pass word');
  expect([isRaw, keys.isPaused(), keys.destroyed]).toEqual([false, true, false]);
  // The terminal shows no keys from the question on.
  expect(shown).toEqual([
    ['Password: ', true],
    ['\n', false],
  ]);
});

it('is interrupted by Ctrl+C', async () => {
  const asked = ask();
  keys.write('pa\u0003');
  await expect(asked).rejects.toThrow(Interrupted);
  expect(isRaw).toBe(false);
});

it('is interrupted by a signal without another key', async () => {
  const interrupt = new AbortController();
  const asked = ask(interrupt);
  keys.write('pa');
  interrupt.abort(new Interrupted());
  await expect(asked).rejects.toThrow(Interrupted);
  expect([isRaw, keys.isPaused()]).toEqual([false, true]);
});

it('ends the raw mode of the terminal when other code ends the process', async () => {
  const before = process.listeners('exit');
  const asked = ask();
  const added = process.listeners('exit').filter((listener) => !before.includes(listener));
  expect(isRaw).toBe(true);
  for (const listener of added) {
    listener.call(process, 130);
  }
  expect(isRaw).toBe(false);
  keys.write('pass\n');
  await asked;
  expect(process.listeners('exit')).toEqual(before);
});
