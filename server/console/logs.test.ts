import { addAbortSignal, PassThrough } from 'node:stream';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { beating } from './logs.ts';

let log: PassThrough;
let pieces: string[];
let end: Promise<void>;

beforeEach(() => {
  vi.useFakeTimers();
  const source = new AbortController();
  log = addAbortSignal(source.signal, new PassThrough());
  pieces = [];
  const read = async () => {
    for await (const piece of beating(log, source)) {
      pieces.push(piece.toString());
    }
  };
  end = read();
});

afterEach(() => {
  vi.useRealTimers();
});

it('sends an empty line at first, and while the guest is silent, but not inside a line', async () => {
  await vi.advanceTimersByTimeAsync(29_000);
  expect(pieces).toEqual(['\n']);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(pieces).toEqual(['\n', '\n']);
  log.write('half a line');
  await vi.advanceTimersByTimeAsync(90_000);
  expect(pieces).toEqual(['\n', '\n', 'half a line']);
  log.write(' and its end\n');
  await vi.advanceTimersByTimeAsync(31_000);
  expect(pieces.slice(3)).toEqual([' and its end\n', '\n']);
  log.end();
  await end;
});

it('ends after five minutes, also while the guest writes', async () => {
  const writing = setInterval(() => log.write('line\n'), 1_000);
  await vi.advanceTimersByTimeAsync(299_000);
  expect(log.destroyed).toBe(false);
  await vi.advanceTimersByTimeAsync(2_000);
  await end;
  expect(log.destroyed).toBe(true);
  clearInterval(writing);
});

it('ends after five minutes, also while the guest is silent', async () => {
  await vi.advanceTimersByTimeAsync(299_000);
  expect(log.destroyed).toBe(false);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(log.destroyed).toBe(true);
  await end;
});
