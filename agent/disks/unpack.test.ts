import { execFileSync } from 'node:child_process';
import { readFile, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { constants, createZstdDecompress, zstdCompressSync } from 'node:zlib';
import { beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { array, assert, asyncProperty, boolean, constantFrom, integer, tuple, uint8Array } from 'fast-check';
import { readCompression, digHoles, unpack, unpackedLimit, ZstdFrames } from './unpack.ts';
import { makeFolder } from '../../test/support/folder.ts';

const MEBIBYTE = 1024 ** 2;
const LIMIT = 64 * MEBIBYTE;
/** A disk of 1 MiB of data, a hole of 7 MiB, and 512 bytes of data, which are less than a block. */
const DISK = Buffer.concat([
  Buffer.alloc(MEBIBYTE, 'berth'),
  Buffer.alloc(7 * MEBIBYTE),
  Buffer.alloc(512, 1),
]);
const { signal } = new AbortController();

describe.each([
  ['xz', ['-0']],
  ['gzip', ['-1']],
  ['zstd', ['-1', '-q']],
] as const)('a disk in %s', (program, options) => {
  let folder: string;
  let from: string;
  let to: string;

  beforeEach(() => {
    folder = makeFolder();
    from = join(folder, 'packed');
    to = join(folder, 'disk');
  });

  function pack(content: Buffer): Buffer {
    return execFileSync(program, [...options, '-c'], { input: content, maxBuffer: LIMIT });
  }

  async function unpackAll(limitBytes = LIMIT): Promise<void> {
    await unpack(program, { from, to, limitBytes }, signal);
  }

  it('is recognised by its content, and unpacked unchanged, with holes for its zeros', async () => {
    await writeFile(from, pack(DISK));
    expect(await readCompression(from)).toBe(program);
    await unpackAll();
    expect((await readFile(to)).equals(DISK)).toBe(true);
    expect((await stat(to)).blocks * 512).toBeLessThan(2 * MEBIBYTE);
  });

  it('of several parts is unpacked completely', async () => {
    const parts = [DISK.subarray(0, 100), DISK.subarray(100, 3 * MEBIBYTE), DISK.subarray(3 * MEBIBYTE)];
    await writeFile(from, Buffer.concat(parts.map(pack)));
    await unpackAll();
    expect((await readFile(to)).equals(DISK)).toBe(true);
  });

  it.each([
    ['that is cut off', (packed: Buffer) => packed.subarray(0, packed.length - 9)],
    [
      'with a wrong byte',
      (packed: Buffer) => Buffer.from(packed).fill(0xa5, packed.length - 20, packed.length - 4),
    ],
  ])('%s is ImageInvalid', async (_, broken) => {
    await writeFile(from, broken(pack(DISK)));
    await expect(unpackAll()).rejects.toMatchObject({ kind: 'invalid' });
  });

  it('that becomes larger than its limit is ImageInvalid', async () => {
    await writeFile(from, pack(DISK));
    await expect(unpackAll(4 * MEBIBYTE)).rejects.toMatchObject({
      kind: 'invalid',
      message: expect.stringContaining(`${4 * MEBIBYTE} bytes`) as string,
    });
  });

  it('is cancelled when no caller waits for it', async () => {
    await writeFile(from, pack(DISK));
    const given = AbortSignal.abort(new Error('no longer wanted'));
    await expect(unpack(program, { from, to, limitBytes: LIMIT }, given)).rejects.toThrow('no longer wanted');
  });
});

describe('a file that is not compressed', () => {
  it('is distinguished from compressed files, and gets holes for its zeros', async () => {
    const folder = makeFolder();
    const path = join(folder, 'disk');
    await writeFile(path, DISK);
    expect(await readCompression(path)).toBeUndefined();
    await digHoles(path);
    expect((await stat(path)).blocks * 512).toBeLessThan(2 * MEBIBYTE);
    expect((await readFile(path)).equals(DISK)).toBe(true);
    await truncate(path, 3);
    expect(await readCompression(path)).toBeUndefined();
  });

  it('may become as large as most disks, and larger only by a factor', () => {
    expect(unpackedLimit(1)).toBe(64 * 1024 ** 3);
    expect(unpackedLimit(1024 ** 3)).toBe(400 * 1024 ** 3);
  });
});

it('a file in xz is not called broken when its program is killed', async () => {
  const folder = makeFolder();
  onTestFinished(async () => {
    vi.unstubAllEnvs();
  });
  await writeFile(join(folder, 'xz'), '#!/bin/sh\nkill -9 $$\n', { mode: 0o755 });
  vi.stubEnv('PATH', folder);
  const unpacking = { from: join(folder, 'packed'), to: join(folder, 'disk'), limitBytes: LIMIT };
  await expect(unpack('xz', unpacking, signal)).rejects.toMatchObject({ name: 'ProgramError' });
});

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
  for (let at = 0, round = 0; at < stream.length; round += 1) {
    const length = pieces[round % pieces.length] ?? 1;
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
