import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ImageError } from '../store.ts';
import { AppleLz4Decoder } from './lz4.ts';

const MIN_MATCH = 4;
/** Where LZ4 lets the last match of a block begin, and what must be literals behind it. */
const LAST_MATCH = 12;
const LAST_LITERALS = 5;
const WINDOW = 65_535;

/** Blocks of `blockSize`; each may refer to those before. A block that would not become smaller is stored when `stored` says so. */
function encode(raw: Buffer, blockSize: number, stored: boolean): Buffer {
  const parts: Buffer[] = [];
  const seen = new Map<number, number>();
  for (let start = 0; start < raw.length; start += blockSize) {
    const end = Math.min(start + blockSize, raw.length);
    const block = encodeBlock(raw, start, end, seen);
    if (stored && block.length >= end - start) {
      parts.push(header('bv4-', end - start), raw.subarray(start, end));
    } else parts.push(header('bv41', end - start, block.length), block);
  }
  return Buffer.concat([...parts, Buffer.from('bv4$')]);
}

function header(magic: string, ...sizes: number[]): Buffer {
  const bytes = Buffer.alloc(4 + sizes.length * 4);
  bytes.write(magic, 'latin1');
  for (const [index, size] of sizes.entries()) bytes.writeUInt32LE(size, 4 + index * 4);
  return bytes;
}

function encodeBlock(raw: Buffer, start: number, end: number, seen: Map<number, number>): Buffer {
  const out: number[] = [];
  let literalsFrom = start;
  for (let at = start; at + LAST_MATCH <= end; ) {
    const key = raw.readUInt32LE(at);
    const before = seen.get(key);
    seen.set(key, at);
    if (before === undefined || at - before > WINDOW) {
      at += 1;
      continue;
    }
    let length = MIN_MATCH;
    while (at + length < end - LAST_LITERALS && raw[before + length] === raw[at + length]) length += 1;
    sequence(out, raw.subarray(literalsFrom, at), { offset: at - before, length });
    at += length;
    literalsFrom = at;
  }
  sequence(out, raw.subarray(literalsFrom, end), undefined);
  return Buffer.from(out);
}

function sequence(
  out: number[],
  literals: Buffer,
  match: { offset: number; length: number } | undefined,
): void {
  const matchLength = match === undefined ? 0 : match.length - MIN_MATCH;
  out.push((Math.min(literals.length, 15) << 4) | Math.min(matchLength, 15));
  longLength(out, literals.length);
  out.push(...literals);
  if (match === undefined) return;
  out.push(match.offset & 255, match.offset >> 8);
  longLength(out, matchLength);
}

function longLength(out: number[], length: number): void {
  if (length < 15) return;
  let left = length - 15;
  for (; left >= 255; left -= 255) out.push(255);
  out.push(left);
}

/** Given in pieces of the lengths named, over and over. */
function decode(stream: Buffer, size: number, pieces: readonly number[] = [stream.length]): Buffer {
  const decoder = new AppleLz4Decoder(size);
  const out: Buffer[] = [];
  for (let at = 0, turn = 0; at < stream.length; turn += 1) {
    const length = pieces[turn % pieces.length] ?? 1;
    for (const piece of decoder.push(stream.subarray(at, at + length))) out.push(Buffer.from(piece));
    at += length;
  }
  out.push(Buffer.from(decoder.end()));
  return Buffer.concat(out);
}

const VECTOR = Buffer.concat([
  header('bv41', 16, 11),
  Buffer.from('4561626364040030', 'hex'),
  Buffer.from('XYZ'),
  header('bv4-', 3),
  Buffer.from('END'),
  Buffer.from('bv4$'),
]);

function changed(at: number, value: number): Buffer {
  const bytes = Buffer.from(VECTOR);
  bytes[at] = value;
  return bytes;
}

describe('the LZ4 streams of Apple', () => {
  it('are decoded as written by hand', () => {
    expect(decode(VECTOR, 19).toString()).toBe('abcdabcdabcdaXYZEND');
  });

  it('give what was encoded, wherever they are cut', () => {
    const words = fc.uint8Array({ minLength: 1, maxLength: 40 });
    const raws = fc
      .array(fc.tuple(words, fc.integer({ min: 1, max: 300 })), { maxLength: 12 })
      .map((parts) => Buffer.concat(parts.flatMap(([word, times]) => Array<Uint8Array>(times).fill(word))));
    fc.assert(
      fc.property(
        raws,
        fc.integer({ min: 1, max: 5000 }),
        fc.boolean(),
        fc.array(fc.integer({ min: 1, max: 700 }), { minLength: 1, maxLength: 5 }),
        (raw, blockSize, stored, pieces) => {
          expect(decode(encode(raw, blockSize, stored), raw.length, pieces).equals(raw)).toBe(true);
        },
      ),
    );
  });

  it('may reach back over several pieces of output', () => {
    const noise = Buffer.from(Array.from({ length: 60_000 }, (_, index) => (index * index * 31) >> 7));
    const raw = Buffer.concat(Array<Buffer>(60).fill(noise));
    const stream = encode(raw, 1_500_000, false);
    expect(stream.length).toBeLessThan(raw.length / 10);
    expect(decode(stream, raw.length, [65_536]).equals(raw)).toBe(true);
  });

  it.each([
    ['that refer to what lies before their beginning', changed(17, 5), 19, 'before its beginning'],
    ['that refer to where they are', changed(17, 0), 19, 'before its beginning'],
    ['of an unknown block', changed(3, 0x32), 19, 'no known beginning'],
    ['whose block gives more than it says', changed(4, 15), 18, 'more than it says'],
    ['whose block gives less than it says', changed(4, 17), 20, 'less than it says'],
    ['whose block is cut', changed(8, 10), 19, 'ends in the middle'],
    ['whose literals are cut', changed(8, 3), 19, 'ends in the middle'],
    ['that are cut', VECTOR.subarray(0, -1), 19, 'it ends in the middle'],
    ['without an end', VECTOR.subarray(0, -4), 19, 'it ends in the middle'],
    ['that go on behind their end', Buffer.concat([VECTOR, Buffer.from('b')]), 19, 'follows its end'],
    ['that give more than they should', VECTOR, 18, 'more than it should'],
    ['that give less than they should', VECTOR, 20, '1 bytes less'],
  ])('%s are refused', (_what, stream, size, message) => {
    expect(() => decode(stream, size)).toThrow(ImageError);
    expect(() => decode(stream, size)).toThrow(message);
    expect(() => decode(stream, size, [1])).toThrow(message);
  });
});
