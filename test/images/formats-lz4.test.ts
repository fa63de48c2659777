import { randomBytes } from 'node:crypto';
import { array, assert, boolean, integer, property, tuple, uint8Array } from 'fast-check';
import { describe, expect, it } from 'vitest';
import { AppleLz4Decoder, BLOCK_BYTES, encodeBlock, END_BLOCK } from '../../agent/disks/lz4.ts';
import { DiskError } from '../../agent/disks/disk.ts';
import { lz4Header, lz4Stream } from '../fixtures/lz4.ts';

/** Decodes the stream in pieces of these lengths, which are used again and again. */
function decode(stream: Buffer, size: number, pieces: readonly number[] = [stream.length]): Buffer {
  const decoder = new AppleLz4Decoder(size);
  const out: Buffer[] = [];
  for (let at = 0, round = 0; at < stream.length; round += 1) {
    const length = pieces[round % pieces.length] ?? 1;
    for (const piece of decoder.push(stream.subarray(at, at + length))) {
      out.push(Buffer.from(piece));
    }
    at += length;
  }
  out.push(Buffer.from(decoder.end()));
  return Buffer.concat(out);
}

const VECTOR = Buffer.concat([
  lz4Header('bv41', 16, 11),
  Buffer.from('4561626364040030', 'hex'),
  Buffer.from('XYZ'),
  lz4Header('bv4-', 3),
  Buffer.from('END'),
  Buffer.from('bv4$'),
]);

/** A block whose first sequence refers this number of bytes back, although it has only one byte. */
function referring(offset: number): Buffer {
  const first = Buffer.from([0x14, 0x61, offset, 0]);
  const rest = Buffer.concat([Buffer.from([0xf0, 76]), Buffer.alloc(91, 0x62)]);
  return Buffer.concat([
    lz4Header('bv41', 100, first.length + rest.length),
    first,
    rest,
    Buffer.from('bv4$'),
  ]);
}

function changed(at: number, value: number): Buffer {
  const bytes = Buffer.from(VECTOR);
  bytes[at] = value;
  return bytes;
}

describe('the LZ4 streams of Apple', () => {
  it('are decoded as written by hand', () => {
    expect(decode(VECTOR, 19).toString()).toBe('abcdabcdabcdaXYZEND');
  });

  it('may repeat one byte', () => {
    expect(decode(referring(1), 100).toString()).toBe(`${'a'.repeat(9)}${'b'.repeat(91)}`);
  });

  it('give the encoded content, wherever they are cut', () => {
    const pattern = uint8Array({ minLength: 1, maxLength: 40 });
    const raws = array(tuple(pattern, integer({ min: 1, max: 300 })), { maxLength: 12 }).map((parts) =>
      Buffer.concat(parts.flatMap(([word, times]) => Array<Uint8Array>(times).fill(word))),
    );
    assert(
      property(
        raws,
        integer({ min: 1, max: 5000 }),
        boolean(),
        boolean(),
        array(integer({ min: 1, max: 700 }), { minLength: 1, maxLength: 5 }),
        (raw, blockBytes, stored, linked, pieces) => {
          expect(decode(lz4Stream(raw, { blockBytes, stored, linked }), raw.length, pieces).equals(raw)).toBe(
            true,
          );
        },
      ),
    );
  });

  it('may refer back over several pieces of output', () => {
    const noise = Buffer.from(Array.from({ length: 60_000 }, (_, index) => (index * index * 31) >> 7));
    const raw = Buffer.concat(Array<Buffer>(60).fill(noise));
    const stream = lz4Stream(raw, { blockBytes: 1_500_000, linked: true });
    expect(stream.length).toBeLessThan(raw.length / 10);
    expect(decode(stream, raw.length, [65_536]).equals(raw)).toBe(true);
  });

  it('are made of whole blocks, which are small for what repeats and hardly larger for noise', () => {
    const noise = randomBytes(BLOCK_BYTES);
    const contents = [
      Buffer.alloc(BLOCK_BYTES),
      noise,
      Buffer.concat([
        Buffer.from(noise.subarray(0, 300)),
        Buffer.alloc(40_000, 'text '),
        noise.subarray(0, 900),
      ]),
      ...[1, 5, 12, 13, 17, 270, 529].map((length) => Buffer.alloc(length, 'ab')),
      ...[1, 12, 15, 300].map((length) => noise.subarray(0, length)),
    ];
    const blocks = contents.map((content) => encodeBlock(content));
    contents.forEach((content, index) => {
      expect(
        decode(Buffer.concat([blocks[index] ?? END_BLOCK, END_BLOCK]), content.length).equals(content),
      ).toBe(true);
    });
    const all = Buffer.concat(contents);
    expect(decode(Buffer.concat([...blocks, END_BLOCK]), all.length, [4_097]).equals(all)).toBe(true);
    expect(blocks.slice(0, 2).map(({ length }) => length)).toEqual([279, BLOCK_BYTES + 8]);
  });

  it.each([
    ['that refer to what lies before their beginning', changed(17, 5), 19, 'before the beginning'],
    ['that refer to where they are', changed(17, 0), 19, 'before the beginning'],
    ['that refer before their beginning in a long block', referring(2), 100, 'before the beginning'],
    ['that refer to where they are in a long block', referring(0), 100, 'before the beginning'],
    ['of an unknown block', changed(3, 0x32), 19, 'an unknown magic number'],
    ['whose block gives more than it says', changed(4, 15), 18, 'more than its header says'],
    ['whose block gives less than it says', changed(4, 17), 20, 'less than its header says'],
    ['whose block is cut', changed(8, 10), 19, 'a block is cut off'],
    ['whose literals are cut', changed(8, 3), 19, 'a block is cut off'],
    ['that are cut', VECTOR.subarray(0, -1), 19, 'its end mark is missing'],
    ['without an end', VECTOR.subarray(0, -4), 19, 'its end mark is missing'],
    ['that go on behind their end', Buffer.concat([VECTOR, Buffer.from('b')]), 19, 'follow its end mark'],
    ['that give more than they should', VECTOR, 18, 'longer than the size given in the image'],
    ['that give less than they should', VECTOR, 20, '1 bytes too short'],
  ])('%s are refused', (_what, stream, size, message) => {
    expect(() => decode(stream, size)).toThrow(DiskError);
    expect(() => decode(stream, size)).toThrow(message);
    expect(() => decode(stream, size, [1])).toThrow(message);
  });
});
