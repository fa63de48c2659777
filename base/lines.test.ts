import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { PassThrough } from 'node:stream';
import { LineSplitter, readLines } from './lines.ts';

function chunksOf(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const places = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  return [0, ...places].map((start, index) => bytes.subarray(start, places[index] ?? bytes.length));
}

it('are the same however the bytes are cut, between and within characters', () => {
  // Characters of one to four bytes, and characters that could be mistaken for the end of a line.
  const character = fc.constantFrom('a', '"', '\\', '\r', 'é', '€', '\u2028', '😀');
  const line = fc.string({ unit: character, minLength: 1 });
  fc.assert(
    fc.property(fc.array(line), fc.array(fc.nat()), (lines, cuts) => {
      const bytes = Buffer.from(lines.map((text) => `${text}\n`).join(''));
      const splitter = new LineSplitter(1024 * 1024);
      const got = chunksOf(bytes, cuts).flatMap((chunk) => splitter.push(chunk));
      expect(got.join('\n')).toBe(lines.join('\n'));
    }),
  );
});

it('do not include text without a line end, and empty lines', () => {
  const splitter = new LineSplitter(1024 * 1024);
  expect(splitter.push(Buffer.from('a\n\nb'))).toEqual(['a']);
  expect(splitter.push(Buffer.from('c'))).toEqual([]);
  expect(splitter.push(Buffer.from('\n'))).toEqual(['bc']);
});

it('a line without end is refused and not kept', () => {
  const splitter = new LineSplitter(10);
  splitter.push(Buffer.from('123456'));
  expect(() => splitter.push(Buffer.from('789012'))).toThrow('longer than 10 bytes');
  expect(splitter.push(Buffer.from('\n'))).toEqual(['123456']);
});

it('a complete line that is too long is refused', () => {
  expect(() => new LineSplitter(3).push(Buffer.from('1234\n'))).toThrow('longer than 3 bytes');
});

it('a line without end, or a refused line, ends the connection', async () => {
  const closed = async (bytes: string): Promise<string> => {
    const connection = new PassThrough();
    const { promise, resolve } = Promise.withResolvers<Error>();
    connection.on('error', resolve);
    readLines(connection, 10, (line) => {
      if (line !== 'good') {
        throw new Error(`not taken: ${line}`);
      }
    });
    connection.write(bytes);
    const { message } = await promise;
    expect(connection.destroyed).toBe(true);
    return message;
  };
  expect(await closed('good\n12345678901')).toContain('longer than 10 bytes');
  expect(await closed('good\nbad\nworse\n')).toBe('not taken: bad');
});

it('a line that arrives in single bytes needs little more memory than its bytes', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = (): number => {
    collect();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  const splitter = new LineSplitter(1024 * 1024);
  const before = used();
  for (let count = 0; count < 256 * 1024; count += 1) {
    splitter.push(Buffer.from('a'));
  }
  expect(used() - before).toBeLessThan(4 * 1024 * 1024);
  expect(splitter.push(Buffer.from('\n'))).toEqual(['a'.repeat(256 * 1024)]);
});
