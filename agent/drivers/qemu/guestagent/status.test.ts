import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { JsonError } from '../../../../base/json.ts';
import type { Reserve } from '../../driver.ts';
import { Output, OUTPUT_LIMIT_BYTES, StatusLine } from './status.ts';

const ALWAYS: Reserve = () => true;

/** Reads a line in pieces of these lengths, again and again. */
function read(line: Buffer | string, lengths: readonly number[] = [], reserve = ALWAYS): unknown {
  const bytes = Buffer.from(line);
  const reader = new StatusLine(reserve);
  for (let at = 0, turn = 0; at < bytes.length; turn += 1) {
    const length = lengths[turn % lengths.length] ?? bytes.length;
    reader.push(bytes.subarray(at, at + length));
    at += length;
  }
  return reader.end();
}

/** Replaces outputs by the base64 text from which they came. */
function encoded(value: unknown): unknown {
  if (value instanceof Output) {
    return Buffer.concat(value.pieces).toString('base64');
  }
  if (Array.isArray(value)) {
    return value.map(encoded);
  }
  return typeof value === 'object' && value !== null
    ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, encoded(one)]))
    : value;
}

const base64 = fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes).toString('base64'));
const other = fc.jsonValue({ maxDepth: 2 });
const fields = fc.record(
  {
    exited: fc.boolean(),
    'out-data': base64,
    x: fc.oneof(other, fc.record({ return: other, 'out-data': other })),
    'err-data': base64,
    'x"out-data': other,
  },
  { requiredKeys: [] },
);
const lines = fc.record(
  { 'out-data': other, return: fc.oneof(fields, other), x: other },
  { requiredKeys: [] },
);

test('a line has the value that JSON.parse gives, in any pieces, and its output is decoded', () => {
  const lengths = fc.array(fc.integer({ min: 1, max: 80 }), { minLength: 1, maxLength: 4 });
  let outputs = 0;
  fc.assert(
    fc.property(lines, lengths, fc.nat(2), (line, pieces, spaces) => {
      const text = JSON.stringify(line, undefined, spaces);
      fc.pre((text.match(/[[{,]/g) ?? []).length < 64);
      const value = read(text, pieces) as { return?: Record<string, unknown> };
      expect(encoded(value)).toEqual(JSON.parse(text));
      outputs += Number(value.return?.['out-data'] instanceof Output);
    }),
    { numRuns: 1_000 },
  );
  expect(outputs).toBeGreaterThan(100);
});

function outputOf(data: string, reserve = ALWAYS): Output {
  const { return: value } = read(`{"return":{"exited":true,"out-data":"${data}"}}`, [65_536], reserve) as {
    return: { 'out-data': Output };
  };
  return value['out-data'];
}

test('output is cut at its limit, and where no memory is left, and the rest of the line is read', () => {
  const content = Buffer.alloc(OUTPUT_LIMIT_BYTES + 1, 'output');
  const whole = outputOf(content.subarray(1).toString('base64'));
  expect([Buffer.concat(whole.pieces).equals(content.subarray(1)), whole.cut]).toEqual([true, false]);
  const long = outputOf(content.toString('base64'));
  expect([Buffer.concat(long.pieces).equals(content.subarray(0, -1)), long.cut]).toEqual([true, true]);
  let left = 100 * 1024;
  const poor = outputOf(content.toString('base64'), (bytes) => {
    left -= bytes;
    return left >= 0;
  });
  expect([Buffer.concat(poor.pieces).length, poor.cut]).toEqual([96 * 1024, true]);
});

test('a line that repeats its keys has the last value', () => {
  const value = read(
    '{"return":{"out-data":"QQ=="},"return":{"err-data":"QQ==","err-data":5,"out-data":"Qg=="}}',
  );
  expect(encoded(value)).toEqual({ return: { 'err-data': 5, 'out-data': 'Qg==' } });
});

test.for([
  ['a character that is not base64', 'QUJD*UJD'],
  ['an escape', String.raw`QUJD\n123`],
  ['an escaped quote', String.raw`QUJD\"BD`],
  ['padding in the middle', 'QQ==QUJD'],
  ['an incomplete group', 'QUJDQ'],
])('output with %s is refused', ([, data = '']) => {
  expect(() => outputOf(data)).toThrow(JsonError);
});

test.for([
  ['flat lists', '[],'],
  ['numbers', '0,'],
  ['spaces', ' '],
  ['objects', '{"return":{"out-data":"'],
])('a line with many %s beside the output is refused while it arrives', ([, piece = '']) => {
  const reader = new StatusLine(ALWAYS);
  reader.push(Buffer.from('{"return":{"exited":true,"out-data":"QQ==","x":['));
  expect(() => reader.push(Buffer.from(piece.repeat(5_000)))).toThrow(JsonError);
});
