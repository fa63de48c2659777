/**
 * Unpacks compressed disks. The code recognizes the compression by the first bytes of the content, because the names of downloads are not
 * reliable.
 */
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { codeOf, isMissing, messageOf } from '../../base/errors.ts';
import { ProgramError, run, start } from '../../base/exec.ts';
import { DiskError } from './disk.ts';
import { writeSparse } from './sparse.ts';
import { zstdDecoder, ZstdFrames } from './zstdframes.ts';

type Compression = 'gzip' | 'xz' | 'zstd';

const MAGIC: readonly [Compression, Buffer][] = [
  ['gzip', Buffer.from([0x1f, 0x8b, 0x08])],
  ['xz', Buffer.from([0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00])],
  ['zstd', Buffer.from([0x28, 0xb5, 0x2f, 0xfd])],
];
const MAGIC_BYTES = 6;

const PIECE_BYTES = 1024 * 1024;
/**
 * Unpacked size in bytes that is accepted even if the compressed content is very small. The compressed content is one file from a web
 * server, or all layers of one container image together. Most of a disk is empty, so a small file can become a large disk. This does no
 * harm, because the zeros use no space on the host's disk.
 */
const EXPANSION_FREE_BYTES = 64 * 1024 ** 3;
/**
 * Content that unpacks to more than {@link EXPANSION_FREE_BYTES} may unpack to at most this multiple of its compressed size. Compressed
 * desktop systems unpack to 2 to 30 times their size.
 */
const EXPANSION_LIMIT = 400;
/** Memory limit of the program xz. The highest preset of xz needs 65 MiB. Only files made for an attack need more than the limit. */
const XZ_MEMORY_LIMIT_BYTES = 512 * 1024 * 1024;
/** Time limit of the program fallocate, which reads the whole file once. */
const DIG_TIMEOUT_MILLISECONDS = 600_000;

/** Returns the compression of a file, or undefined if the file has no known compression. */
export async function compressionOf(path: string): Promise<Compression | undefined> {
  const file = await open(path, 'r');
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(MAGIC_BYTES), 0, MAGIC_BYTES, 0);
    const head = buffer.subarray(0, bytesRead);
    return MAGIC.find(([, magic]) => head.subarray(0, magic.length).equals(magic))?.[0];
  } finally {
    await file.close();
  }
}

/** Returns the largest unpacked size in bytes that is accepted for `bytes` compressed bytes. */
export function unpackedLimit(bytes: number): number {
  return Math.max(EXPANSION_FREE_BYTES, EXPANSION_LIMIT * bytes);
}

interface Unpacking {
  from: string;
  to: string;
  limitBytes: number;
}

/** Returns the error for content that unpacks to more than {@link unpackedLimit} allows. */
export function tooLarge(limitBytes: number): DiskError {
  return new DiskError(
    'invalid',
    `The content unpacks to more than ${limitBytes} bytes, which is too much for its compressed size`,
  );
}

/**
 * Writes the unpacked content of `from` to `to`, with holes in place of zeros. @throws DiskError when the content is broken or
 * unpacks to more than the limit.
 */
export async function unpack(
  compression: Compression,
  unpacking: Unpacking,
  signal: AbortSignal,
): Promise<void> {
  if (compression === 'xz') {
    await unpackXz(unpacking, signal);
    return;
  }
  const packed = createReadStream(unpacking.from, { highWaterMark: PIECE_BYTES });
  await decode(compression, packed, sink(unpacking), signal);
}

/** Passes the unpacked content of a stream to `read`. @throws DiskError when the content is broken. */
export async function decode(
  compression: 'none' | 'gzip' | 'zstd',
  packed: Readable,
  read: (content: AsyncIterable<Buffer>) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  try {
    if (compression === 'none') {
      await pipeline(packed, read, { signal });
    } else if (compression === 'gzip') {
      await pipeline(packed, createGunzip({ chunkSize: PIECE_BYTES }), read, { signal });
    } else {
      await pipeline(packed, new ZstdFrames(), zstdDecoder(PIECE_BYTES), read, { signal });
    }
  } catch (error) {
    signal.throwIfAborted();
    if (!isDecoders(error)) {
      throw error;
    }
    throw new DiskError('invalid', `The ${compression} content is broken: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

function sink({ to, limitBytes }: Unpacking): (content: AsyncIterable<Buffer>) => Promise<void> {
  return async (content) => {
    const file = await open(to, 'w', 0o600);
    try {
      let position = 0;
      for await (const piece of content) {
        if (position + piece.length > limitBytes) {
          throw tooLarge(limitBytes);
        }
        await writeSparse({ file, fresh: true }, piece, position);
        position += piece.length;
      }
      // Zeros at the end of the content were not written, so the length of the file is set here.
      await file.truncate(position);
      await file.sync();
    } finally {
      await file.close();
    }
  };
}

/** Unpacks xz content with the program xz, because Node.js has no decoder for xz. */
async function unpackXz(unpacking: Unpacking, signal: AbortSignal): Promise<void> {
  const parameters = [
    '--decompress',
    '--stdout',
    `--memlimit-decompress=${XZ_MEMORY_LIMIT_BYTES}`,
    '--',
    unpacking.from,
  ];
  const environment = { PATH: process.env['PATH'], LC_ALL: 'C' };
  const { output, ended, end } = start('xz', parameters, { environment });
  try {
    await pipeline(output, sink(unpacking), { signal });
    await ended;
  } catch (error) {
    end();
    await ended.catch((failure: unknown) => {
      if (isMissing(failure)) {
        throw new DiskError('unsupported', 'The image needs the program xz: install it on this host');
      }
    });
    signal.throwIfAborted();
    if (error instanceof ProgramError && error.exitCode !== undefined) {
      throw new DiskError('invalid', `The xz content is broken: ${error.words || error.message}`);
    }
    throw error;
  }
}

/** Returns whether an error is from Node's decoders of gzip and zstd. */
function isDecoders(error: unknown): boolean {
  const code = codeOf(error) ?? '';
  return /^(Z_|ZSTD_)/.test(code);
}

/** Replaces blocks of zeros in a whole file by holes. Does nothing outside Linux. @throws ProgramError when fallocate fails. */
export async function digHoles(path: string): Promise<void> {
  if (process.platform !== 'linux') {
    return;
  }
  await run('fallocate', ['--dig-holes', '--', path], { timeoutMilliseconds: DIG_TIMEOUT_MILLISECONDS });
}
