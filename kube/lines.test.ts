import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { LineSplitter } from './lines.ts';

function chunksOf(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const places = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  return [0, ...places].map((start, index) => bytes.subarray(start, places[index] ?? bytes.length));
}

it('gives the same lines however the bytes are cut, between and within characters', () => {
  // Characters of one to four bytes, and what could be taken for the end of a line.
  const character = fc.constantFrom('a', '"', '\\', '\r', 'é', '€', '\u2028', '😀');
  const line = fc.string({ unit: character, minLength: 1 });
  fc.assert(
    fc.property(fc.array(line), fc.array(fc.nat()), (lines, cuts) => {
      const bytes = Buffer.from(lines.map((text) => `${text}\n`).join(''));
      const splitter = new LineSplitter();
      const got = chunksOf(bytes, cuts).flatMap((chunk) => splitter.push(chunk));
      expect(got.join('\n')).toBe(lines.join('\n'));
    }),
  );
});

it('leaves out what has no end yet, and empty lines', () => {
  const splitter = new LineSplitter();
  expect(splitter.push(Buffer.from('a\n\nb'))).toEqual(['a']);
  expect(splitter.push(Buffer.from('c'))).toEqual([]);
  expect(splitter.push(Buffer.from('\n'))).toEqual(['bc']);
});

it('refuses a line without end instead of keeping it', () => {
  const splitter = new LineSplitter(10);
  splitter.push(Buffer.from('123456'));
  expect(() => splitter.push(Buffer.from('789012'))).toThrow('longer than 10 bytes');
});
