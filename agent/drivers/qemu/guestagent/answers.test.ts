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
