import { expect, it } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { Reader } from './reader.ts';

/** Largest size of one text, as in reader.ts. */
const TEXT_BYTES = 1024 * 1024;
const LINE_LENGTH = 1_000;

interface RawOptions {
  signal: AbortSignal;
  onData: (piece: Buffer) => void;
}

function line(number: number): string {
  return `${`line ${number} `.padEnd(LINE_LENGTH - 1, 'x')}\n`;
}

/** Returns a reader of a log with this number of lines. */
function readerOf(lines: number): Reader {
  const raw = async (_: string, _path: string, { signal, onData }: RawOptions) => {
    for (let number = 1; number <= lines; number += 1) {
      signal.throwIfAborted();
      onData(Buffer.from(line(number)));
    }
    return await Promise.resolve({ status: 200 });
  };
  return new Reader({ raw } as unknown as KubeClient, new AbortController().signal);
}

it('keeps the newest lines of a long log, and says so', async () => {
  const reader = readerOf(5_000);
  const text = (await reader.text('log of a', '/log')) ?? '';
  expect(text.endsWith(line(5_000))).toBe(true);
  // A part of a line could be a part of a secret, which nobody recognizes any more.
  expect(text).toMatch(/^line /);
  expect(text.length).toBeGreaterThan(TEXT_BYTES - 2 * LINE_LENGTH);
  expect(text.length).toBeLessThanOrEqual(TEXT_BYTES);
  expect(reader.unread).toEqual([{ part: 'log of a', cause: `Only the last ${TEXT_BYTES} bytes are kept` }]);
});

it('returns a short log unchanged', async () => {
  const reader = readerOf(3);
  expect(await reader.text('log of a', '/log')).toBe(line(1) + line(2) + line(3));
  expect(reader.unread).toEqual([]);
});

it('ends a text without end', async () => {
  const reader = readerOf(Infinity);
  expect((await reader.text('metrics of a', '/metrics'))?.length).toBeLessThanOrEqual(TEXT_BYTES);
  expect(reader.unread).toEqual([{ part: 'metrics of a', cause: expect.stringContaining('bytes') }]);
});
