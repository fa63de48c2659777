import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from 'vitest';
import { AnswerReader } from './answers.ts';

function linesOf(...chunks: string[]): string[] {
  const reader = new AnswerReader();
  return chunks.flatMap((chunk) => reader.push(Buffer.from(chunk, 'latin1')));
}

test('only lines after the last delimiter count, wherever the chunks end', () => {
  expect(linesOf('1\n{"a":"', '\xff{"b":"half', '\xff{"c"', ':1}\n2', '\n\n3')).toEqual(['{"c":1}', '2', '']);
});

test('strings keep their quotes and backslashes', () => {
  const text = String.raw`{"a":"\"\\","b":"\\\""}`;
  expect(linesOf(`\xff${text}`, '\n')).toEqual([text]);
});

test('only long strings are cut', () => {
  const long = 'x'.repeat(5_592_404);
  const [line = ''] = linesOf(`\xff{"a":"${long}yyy`, `y","b":"z"}\n`);
  expect(JSON.parse(line)).toEqual({ a: long, b: 'z' });
});

test('a line outside strings has a limit', () => {
  expect(() => linesOf('\xff', '1'.repeat(12 * 1024 * 1024))).toThrow('longer than');
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
  const reader = new AnswerReader();
  reader.push(Buffer.from('\xff"', 'latin1'));
  const before = used();
  for (let count = 0; count < 256 * 1024; count += 1) {
    reader.push(Buffer.from('a'));
  }
  expect(used() - before).toBeLessThan(4 * 1024 * 1024);
  expect(reader.push(Buffer.from('"\n'))).toEqual([`"${'a'.repeat(256 * 1024)}"`]);
});
