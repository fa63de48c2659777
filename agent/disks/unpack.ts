/**
 * Unpacks compressed disks. The code recognizes the compression by the first bytes of the content, because the names of downloads are not
 * reliable.
 *
 * Zstandard content is cut into pieces that do not go beyond the end of a frame. Node's decoder needs such pieces, because it stops at the
 * end of a frame. If a write contains bytes after this end, the decoder drops them without an error. The content can have several frames,
 * and some of them can be skippable frames. The frame format is in RFC 8878, section 3.
 */
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { type Readable, Transform, type TransformCallback } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { constants, createGunzip, createZstdDecompress, type ZstdDecompress } from 'node:zlib';
import { codeOf, isMissing, messageOf } from '../../base/errors.ts';
import { ProgramError, run, start } from '../../base/exec.ts';
import { DiskError } from './disk.ts';
import { writeSparse } from './sparse.ts';

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
export async function readCompression(path: string): Promise<Compression | undefined> {
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
      throw new DiskError('invalid', `The xz content is broken: ${error.lastOutput || error.message}`);
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

/**
 * A frame may require a window of at most 128 MiB. The constant is the base-2 logarithm of this limit in bytes. `zstd --ultra -22` and
 * `--long` use a window of this size, and it is also the default limit of the decoder. Without a limit, a frame could claim a window of
 * 2^31 bytes, and the decoder would allocate it.
 */
const LONGEST_WINDOW_LOG = 27;

/**
 * Returns a decoder of zstd frames whose output comes in pieces of `chunkSize` bytes. If a frame requires a window of more than
 * 2^`windowLog` bytes, the decoder fails with the code `ZSTD_error_frameParameter_windowTooLarge`.
 */
export function zstdDecoder(chunkSize: number, windowLog = LONGEST_WINDOW_LOG): ZstdDecompress {
  return createZstdDecompress({ chunkSize, params: { [constants.ZSTD_d_windowLogMax]: windowLog } });
}

const FRAME_MAGIC = 0xfd2fb528;
const SKIPPABLE_MAGIC = 0x184d2a50;
const SKIPPABLE_MASK = 0xfffffff0;
const BLOCK_HEADER_BYTES = 3;
const CHECKSUM_BYTES = 4;
/**
 * Possible lengths in bytes of two fields in the frame header: the id of the dictionary, and the size of the content. For each field, the
 * header has a flag. The value of this flag is an index into the list of possible lengths.
 */
const DICTIONARY_ID_BYTES = [0, 1, 2, 4];
const CONTENT_SIZE_BYTES = [0, 2, 4, 8];

type Header = 'magic' | 'skipSize' | 'descriptor' | 'block';
/** State of the parser, which determines the meaning of the next bytes. */
type State =
  /** A header follows. The parser collects `need` bytes of the header before it parses them. */
  | { at: Header; need: number }
  /** The next `left` bytes are not parsed. The header `next` follows these bytes. */
  | { at: 'body' | 'skipped'; left: number; next: Header };

/**
 * Outputs the bytes of frames in pieces, and drops skippable frames. No piece goes beyond the end of a frame. The stream fails with a
 * DiskError if the content is broken.
 */
export class ZstdFrames extends Transform {
  #state: State = { at: 'magic', need: 4 };
  #seen = Buffer.alloc(0);
  #checksum = false;
  #frames = 0;

  override _transform(chunk: Buffer, _encoding: BufferEncoding, callback: TransformCallback): void {
    try {
      let from = 0;
      for (let at = 0; at < chunk.length; ) {
        const passes = this.#passes();
        if (!passes) {
          from = at;
        }
        at += this.#take(chunk.subarray(at));
        if (!passes) {
          from = at;
        } else if (this.#state.at === 'magic') {
          this.push(chunk.subarray(from, at));
          from = at;
        }
      }
      if (from < chunk.length) {
        this.push(chunk.subarray(from));
      }
      callback();
    } catch (error) {
      callback(error as Error);
    }
  }

  override _flush(callback: TransformCallback): void {
    const between = this.#state.at === 'magic' && this.#seen.length === 0;
    if (between && this.#frames > 0) {
      callback();
    } else {
      callback(invalid('it is cut off'));
    }
  }

  /**
   * Returns whether the stream outputs the next bytes at once. The stream first collects the four bytes of a magic number, because they
   * show whether the frame is skippable. The stream never outputs bytes of a skippable frame.
   */
  #passes(): boolean {
    return this.#state.at !== 'magic' && this.#state.at !== 'skipSize' && this.#state.at !== 'skipped';
  }

  /** Parses bytes in the current state of the parser, and returns the number of parsed bytes. */
  #take(bytes: Buffer): number {
    const state = this.#state;
    if ('left' in state) {
      const taken = Math.min(bytes.length, state.left);
      state.left -= taken;
      if (state.left === 0) {
        this.#state = header(state.next);
      }
      return taken;
    }
    const part = bytes.subarray(0, state.need - this.#seen.length);
    this.#seen = Buffer.concat([this.#seen, part]);
    if (this.#seen.length === state.need) {
      const seen = this.#seen;
      this.#seen = Buffer.alloc(0);
      this.#state = this.#next(state.at, seen);
    }
    return part.length;
  }

  #next(at: Header, seen: Buffer): State {
    switch (at) {
      case 'magic':
        return this.#magic(seen);
      case 'skipSize':
        return body('skipped', seen.readUInt32LE(0), 'magic');
      case 'descriptor':
        return this.#descriptor(seen.readUInt8(0));
      default:
        return this.#block(seen.readUIntLE(0, BLOCK_HEADER_BYTES));
    }
  }

  #magic(seen: Buffer): State {
    const magic = seen.readUInt32LE(0);
    if ((magic & SKIPPABLE_MASK) >>> 0 === SKIPPABLE_MAGIC) {
      return header('skipSize');
    }
    if (magic !== FRAME_MAGIC) {
      throw invalid(
        this.#frames === 0 ? 'it does not begin with a zstd frame' : 'other bytes follow its last frame',
      );
    }
    this.#frames += 1;
    this.push(seen);
    return header('descriptor');
  }

  #descriptor(flags: number): State {
    const singleSegment = (flags & 0x20) !== 0;
    this.#checksum = (flags & 0x04) !== 0;
    const sizeFlag = flags >> 6;
    const size = sizeFlag === 0 && singleSegment ? 1 : (CONTENT_SIZE_BYTES[sizeFlag] ?? 0);
    const window = singleSegment ? 0 : 1;
    return body('body', window + (DICTIONARY_ID_BYTES[flags & 3] ?? 0) + size, 'block');
  }

  #block(word: number): State {
    const last = (word & 1) !== 0;
    const type = (word >> 1) & 3;
    if (type === 3) {
      throw invalid('a block has an unknown type');
    }
    // A run-length block (type 1) contains only one byte. The size in its header is the number of repetitions of this byte.
    const size = type === 1 ? 1 : word >> 3;
    if (!last) {
      return body('body', size, 'block');
    }
    return body('body', size + (this.#checksum ? CHECKSUM_BYTES : 0), 'magic');
  }
}

const HEADER_BYTES: Record<Header, number> = {
  magic: 4,
  skipSize: 4,
  descriptor: 1,
  block: BLOCK_HEADER_BYTES,
};

function header(at: Header): State {
  return { at, need: HEADER_BYTES[at] };
}

function body(at: 'body' | 'skipped', left: number, next: Header): State {
  return left > 0 ? { at, left, next } : header(next);
}

function invalid(what: string): DiskError {
  return new DiskError('invalid', `The zstd content is broken: ${what}`);
}
