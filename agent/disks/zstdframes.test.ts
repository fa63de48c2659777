import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { constants, createZstdDecompress, zstdCompressSync } from 'node:zlib';
import { array, assert, asyncProperty, boolean, constantFrom, integer, tuple, uint8Array } from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ZstdFrames } from './zstdframes.ts';

function skippable(length: number): Buffer {
  const frame = Buffer.alloc(8 + length, 0xfd);
  frame.writeUInt32LE(0x184d2a53, 0);
  frame.writeUInt32LE(length, 4);
  return frame;
}

function frame(raw: Uint8Array, checksum: boolean, contentSize: boolean): Buffer {
  const params = {
    [constants.ZSTD_c_checksumFlag]: checksum ? 1 : 0,
    [constants.ZSTD_c_contentSizeFlag]: contentSize ? 1 : 0,
  };
  return zstdCompressSync(raw, { params });
}

async function decode(stream: Buffer, pieces: readonly number[] = [stream.length]): Promise<Buffer> {
  const parts: Buffer[] = [];
  for (let at = 0, turn = 0; at < stream.length; turn += 1) {
    const length = pieces[turn % pieces.length] ?? 1;
    parts.push(stream.subarray(at, at + length));
    at += length;
  }
  const out: Buffer[] = [];
  await pipeline(Readable.from(parts), new ZstdFrames(), createZstdDecompress(), async (decoded) => {
    for await (const bytes of decoded) {
      out.push(bytes as Buffer);
    }
  });
  return Buffer.concat(out);
}

const TWO = Buffer.concat([frame(Buffer.from('one '), true, true), frame(Buffer.from('two'), false, false)]);

describe('zstd as it is published', () => {
  it('is decoded beyond its first frame, in one write', async () => {
    expect((await decode(TWO)).toString()).toBe('one two');
  });

  it('may have skippable frames anywhere', async () => {
    const stream = Buffer.concat([skippable(9), TWO, skippable(0), frame(Buffer.from('!'), true, true)]);
    expect((await decode(Buffer.concat([stream, skippable(300)]))).toString()).toBe('one two!');
  });

  it('gives the encoded content, wherever it is cut', async () => {
    const content = tuple(
      uint8Array({ maxLength: 300 }),
      // With these numbers of zeros, the content has several blocks of different kinds.
      constantFrom(0, 1, 700, 200_000),
      boolean(),
      boolean(),
    );
    await assert(
      asyncProperty(
        array(content, { minLength: 1, maxLength: 5 }),
        array(integer({ min: 1, max: 4000 }), { minLength: 1, maxLength: 5 }),
        async (contents, pieces) => {
          const raws = contents.map(([raw, zeros]) => Buffer.concat([raw, Buffer.alloc(zeros)]));
          const frames = raws.map((raw, index) =>
            frame(raw, contents[index]?.[2] ?? true, contents[index]?.[3] ?? true),
          );
          expect((await decode(Buffer.concat(frames), pieces)).equals(Buffer.concat(raws))).toBe(true);
        },
      ),
      { numRuns: 50 },
    );
  });

  it.each([
    ['cut in a block', TWO.subarray(0, -1), 'is cut off'],
    ['cut between the frames’ headers', TWO.subarray(0, TWO.indexOf('two') - 5), 'is cut off'],
    ['nothing', Buffer.alloc(0), 'is cut off'],
    ['only frames to be skipped', skippable(5), 'is cut off'],
    ['something else', Buffer.from('something else'), 'does not begin with a zstd frame'],
    ['something behind', Buffer.concat([TWO, Buffer.from('some')]), 'follow its last frame'],
  ])('is refused: %s', async (_what, stream, message) => {
    await expect(decode(stream)).rejects.toThrow(message);
  });
});
