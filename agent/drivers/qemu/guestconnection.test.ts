import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from 'vitest';
import { JsonError } from '../../../base/json.ts';
import { AnswerReader, JsonLine, type Line } from './guestconnection.ts';

const WIDE = { bytes: 1024 * 1024, items: 64 };

function readerOf(limits = WIDE): AnswerReader {
  return new AnswerReader(() => new JsonLine(limits));
}

function linesOf(...chunks: string[]): Line[] {
  const reader = readerOf();
  return chunks.flatMap((chunk) => [...reader.push(Buffer.from(chunk, 'latin1'))]);
}

test('only lines after the last delimiter count, wherever the chunks end', () => {
  expect(linesOf('1\n{"a":"', '\xff{"b":"half', '\xff{"c"', ':1}\n2', '\n\n3')).toEqual([
    { value: { c: 1 } },
    { value: 2 },
    'unread',
  ]);
});

test('each line has its own limits, and a line that nobody asked for has no value', () => {
  const limits = [undefined, { bytes: 5, items: 0 }, { bytes: 6, items: 2 }, WIDE];
  const reader = new AnswerReader(() => {
    const next = limits.shift();
    return next && new JsonLine(next);
  });
  const lines = [...reader.push(Buffer.from('\xff"unasked"\n"too long"\n[1,2,3]\n"read"\n', 'latin1'))];
  const refused = { refused: expect.any(JsonError) as unknown };
  expect(lines).toEqual(['unread', refused, 'unread', refused, 'unread', { value: 'read' }]);
});

test('a line is refused before its end arrives', () => {
  const reader = readerOf();
  expect([...reader.push(Buffer.from(`\xff${'[],'.repeat(64)}`, 'latin1'))]).toEqual([
    { refused: new JsonError('items', 'has more than 64 values') },
  ]);
  expect([...reader.push(Buffer.from('[],'.repeat(1_000)))]).toEqual([]);
  expect([...reader.push(Buffer.from('\n0\n'))]).toEqual(['unread', { value: 0 }]);
});

/** A guest can write to the port of its guest agent byte by byte, for as long as the agent listens. */
test('a line that arrives in single bytes needs little more memory than its bytes', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = (): number => {
    collect();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  const reader = readerOf();
  const push = (text: string): Line[] => [...reader.push(Buffer.from(text, 'latin1'))];
  push('\xff"');
  const before = used();
  for (let count = 0; count < 256 * 1024; count += 1) {
    push('a');
  }
  expect(used() - before).toBeLessThan(4 * 1024 * 1024);
  expect(push('"\n')).toEqual([{ value: 'a'.repeat(256 * 1024) }]);
});
