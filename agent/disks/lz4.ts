/**
 * Decoder and encoder of Apple's LZ4 streams. Each block of a stream begins with a magic number. The magic number `bv41` is followed by the decoded
 * size, the encoded size and an LZ4 block. `bv4-` is followed by the size and bytes without compression. `bv4$` is the end of the stream.
 * Sizes are 32-bit little-endian numbers. A block can repeat output of earlier blocks.
 */
import { DiskError } from './disk.ts';

const MAGIC_LZ4 = 0x31347662;
const MAGIC_STORED = 0x2d347662;
const MAGIC_END = 0x24347662;
const MAGIC_BYTES = 4;

/** Header of a block. `input` is the length of the block after the header. `output` is the length after decoding. Both are in bytes. */
type Block = { kind: 'lz4' | 'stored'; input: number; output: number } | { kind: 'end' };

/** Parser of one block header. The bytes of the header can come in pieces. */
class BlockHeader {
  #bytes = Buffer.alloc(0);

  /** Takes missing bytes of the header from the beginning of `input`, and returns the number of bytes that it took. */
  take(input: Buffer): number {
    const part = input.subarray(0, this.#size() - this.#bytes.length);
    this.#bytes = Buffer.concat([this.#bytes, part]);
    return part.length;
  }

  /**
   * Returns the parsed header, or undefined while bytes of the header are missing.
   *
   * @throws DiskError when the type of the block is unknown.
   */
  read(): Block | undefined {
    const bytes = this.#bytes;
    if (bytes.length < this.#size()) {
      return undefined;
    }
    const magic = bytes.readUInt32LE(0);
    if (magic === MAGIC_END) {
      return { kind: 'end' };
    }
    const output = bytes.readUInt32LE(4);
    return magic === MAGIC_LZ4
      ? { kind: 'lz4', input: bytes.readUInt32LE(8), output }
      : { kind: 'stored', input: output, output };
  }

  /**
   * Returns the length of the header in bytes. The magic number determines this length. Until all bytes of the magic number are there, the
   * result is the length of the magic number.
   */
  #size(): number {
    if (this.#bytes.length < MAGIC_BYTES) {
      return MAGIC_BYTES;
    }
    const magic = this.#bytes.readUInt32LE(0);
    const size = { [MAGIC_LZ4]: 12, [MAGIC_STORED]: 8, [MAGIC_END]: MAGIC_BYTES }[magic];
    if (size === undefined) {
      throw invalid('a block begins with an unknown magic number');
    }
    return size;
  }
}

function invalid(what: string): DiskError {
  return new DiskError('invalid', `The LZ4 stream is broken: ${what}`);
}

/** A match is an instruction to repeat earlier output. The repeated output begins at most this number of bytes before the match. */
const WINDOW_BYTES = 64 * 1024;
/** Size of one piece of output in bytes. Decoding such a piece takes only a few milliseconds. Other work runs between two pieces. */
const PIECE_BYTES = 1024 * 1024;
const MIN_MATCH = 4;
/** Largest value of a four-bit length in a token. If a length has this value, the next bytes contain the rest of the length. */
const LONG = 15;
/** Copies of at least this number of bytes use methods of Buffer. For smaller copies, a loop that copies single bytes is faster. */
const SHORT_COPY = 32;

/**
 * Largest numbers of bytes that the decoder reads and writes for a short sequence. A sequence is a token, literals and a match. It is short
 * if the lengths of literals and match fit into the token. `SHORT_INPUT_BYTES` includes the first byte of the next sequence.
 */
const SHORT_INPUT_BYTES = 1 + 14 + 2 + 1;
const SHORT_OUTPUT_BYTES = 14 + 14 + MIN_MATCH;

/** States of the decoder, which determine the meaning of the next input byte. `MATCH` reads no input and repeats earlier output. */
const HEADER = 0;
const STORED = 1;
const TOKEN = 2;
const LITERAL_LENGTH = 3;
const LITERALS = 4;
const OFFSET_LOW = 5;
const OFFSET_HIGH = 6;
const MATCH_LENGTH = 7;
const MATCH = 8;
const END = 9;

export class AppleLz4Decoder {
  readonly #out = Buffer.allocUnsafe(WINDOW_BYTES + PIECE_BYTES);
  /** Index in `#out` of the next byte to write. A match (a back-reference) can repeat only the 64 KiB before this index. */
  #position = WINDOW_BYTES;
  /** Number of bytes of the whole output that are still to be decoded. */
  #left: number;
  readonly #size: number;

  #input: Buffer = Buffer.alloc(0);
  #at = 0;
  #state = HEADER;
  #header = new BlockHeader();
  /** Remaining bytes of the current block: bytes to read (`#blockInput`) and bytes to write (`#blockOutput`). */
  #blockInput = 0;
  #blockOutput = 0;
  #literals = 0;
  #match = 0;
  #offset = 0;

  /** Creates a decoder of a stream whose whole output has `size` bytes. */
  constructor(size: number) {
    this.#size = size;
    this.#left = size;
  }

  /**
   * Decodes `input`, the next part of the stream, and yields pieces of output. Each piece is valid only until the caller asks for the next
   * piece. @throws DiskError when the stream is broken.
   */
  *push(input: Buffer): Generator<Buffer, void, undefined> {
    this.#input = input;
    this.#at = 0;
    while (this.#at < input.length || (this.#state === MATCH && this.#match > 0)) {
      if (this.#position === this.#out.length) {
        yield this.#out.subarray(WINDOW_BYTES);
        this.#slide();
      }
      this.#step();
    }
  }

  /** Returns the last piece of output, which can be empty. @throws DiskError when the end of the stream or of its output is missing. */
  end(): Buffer {
    if (this.#state !== END) {
      throw invalid('its end mark is missing');
    }
    if (this.#left > 0) {
      throw invalid(`its content is ${this.#left} bytes too short`);
    }
    return this.#out.subarray(WINDOW_BYTES, this.#position);
  }

  /** Copies the last 64 KiB of the output to the beginning of the buffer, because the next piece can repeat them. */
  #slide(): void {
    this.#out.copyWithin(0, this.#position - WINDOW_BYTES, this.#position);
    this.#position = WINDOW_BYTES;
  }

  #step(): void {
    switch (this.#state) {
      case TOKEN:
        return this.#token();
      case LITERALS:
      case STORED:
        return this.#copy();
      case OFFSET_LOW:
        this.#offset = this.#byte();
        this.#state = OFFSET_HIGH;
        return undefined;
      case OFFSET_HIGH:
        return this.#offsetHigh();
      case MATCH:
        return this.#repeat();
      case HEADER:
        return this.#readHeader();
      case END:
        throw invalid('bytes follow its end mark');
      default:
        return this.#length();
    }
  }

  #byte(): number {
    if (this.#blockInput === 0) {
      throw invalid('a block is cut off');
    }
    this.#blockInput -= 1;
    const byte = this.#input[this.#at] ?? 0;
    this.#at += 1;
    return byte;
  }

  /**
   * Decodes sequences in a loop that is several times faster than the decoder's state machine. The loop ends at a sequence that is invalid,
   * has a long length, or is near the end of the input or output. The state machine handles this sequence.
   */
  #shortSequences(): void {
    const [input, out, begin, start] = [this.#input, this.#out, this.#at, this.#position];
    const lastAt = Math.min(input.length, begin + this.#blockInput) - SHORT_INPUT_BYTES;
    const lastTo = Math.min(out.length, start + this.#blockOutput) - SHORT_OUTPUT_BYTES;
    const floor = Math.max(0, start - (this.#size - this.#left));
    let at = begin;
    let to = start;
    while (at <= lastAt && to <= lastTo) {
      const token = input[at] as number;
      const literals = token >> 4;
      const match = token & LONG;
      if (literals === LONG || match === LONG) {
        break;
      }
      const offsetAt = at + 1 + literals;
      const offset = (input[offsetAt] as number) | ((input[offsetAt + 1] as number) << 8);
      const from = to + literals - offset;
      if (offset === 0 || from < floor) {
        break;
      }
      copyBytes(out, to, input, at + 1, literals);
      to += literals;
      copyBytes(out, to, out, from, match + MIN_MATCH);
      to += match + MIN_MATCH;
      at = offsetAt + 2;
    }
    this.#at = at;
    this.#blockInput -= at - begin;
    this.#give(to - start);
  }

  #token(): void {
    this.#shortSequences();
    if (this.#at === this.#input.length || this.#position === this.#out.length) {
      return;
    }
    const token = this.#byte();
    this.#literals = token >> 4;
    this.#match = token & LONG;
    this.#state = LITERALS;
    if (this.#literals === LONG) {
      this.#state = LITERAL_LENGTH;
    } else if (this.#literals === 0) {
      this.#afterLiterals();
    }
  }

  #length(): void {
    const byte = this.#byte();
    const isLiterals = this.#state === LITERAL_LENGTH;
    const length = byte + (isLiterals ? this.#literals : this.#match);
    if (length > this.#blockOutput) {
      throw invalid('a block contains more than its header says');
    }
    this.#literals = isLiterals ? length : this.#literals;
    this.#match = isLiterals ? this.#match : length;
    if (byte !== 255) {
      this.#state = isLiterals ? LITERALS : MATCH;
    }
  }

  /** Copies literals of an LZ4 block, or the bytes of a stored block. */
  #copy(): void {
    if (this.#literals > this.#blockInput) {
      throw invalid('a block is cut off');
    }
    const room = this.#out.length - this.#position;
    const count = Math.min(this.#literals, this.#input.length - this.#at, room);
    const [input, out, from, to] = [this.#input, this.#out, this.#at, this.#position];
    if (count < SHORT_COPY) {
      copyBytes(out, to, input, from, count);
    } else {
      input.copy(out, to, from, from + count);
    }
    this.#at += count;
    this.#blockInput -= count;
    this.#literals -= count;
    this.#give(count);
    if (this.#literals === 0) {
      this.#afterLiterals();
    }
  }

  #give(count: number): void {
    if (count > this.#blockOutput) {
      throw invalid('a block contains more than its header says');
    }
    this.#position += count;
    this.#blockOutput -= count;
    this.#left -= count;
  }

  /** Chooses the state after literals. A match follows the literals, except at the end of an LZ4 block and in a stored block. */
  #afterLiterals(): void {
    if (this.#blockInput > 0) {
      this.#state = OFFSET_LOW;
    } else {
      this.#afterBlock();
    }
  }

  #afterBlock(): void {
    if (this.#blockOutput > 0 || this.#blockInput > 0) {
      throw invalid('a block contains less than its header says');
    }
    this.#state = HEADER;
    this.#header = new BlockHeader();
  }

  #offsetHigh(): void {
    this.#offset += this.#byte() * 256;
    if (this.#offset === 0 || this.#offset > this.#size - this.#left) {
      throw invalid('a block refers to bytes before the beginning of the content');
    }
    this.#state = this.#match === LONG ? MATCH_LENGTH : MATCH;
    this.#match += MIN_MATCH;
  }

  #repeat(): void {
    const count = Math.min(this.#match, this.#out.length - this.#position);
    const [out, to, from] = [this.#out, this.#position, this.#position - this.#offset];
    this.#give(count);
    if (count >= SHORT_COPY && this.#offset >= count) {
      out.copyWithin(to, from, from + count);
    } else if (this.#offset === 1) {
      out.fill(out[from] ?? 0, to, to + count);
    } else {
      copyBytes(out, to, out, from, count);
    }
    this.#match -= count;
    if (this.#match === 0) {
      this.#state = TOKEN;
    }
  }

  #readHeader(): void {
    this.#at += this.#header.take(this.#input.subarray(this.#at));
    const block = this.#header.read();
    if (block === undefined) {
      return;
    }
    if (block.kind === 'end') {
      this.#state = END;
      return;
    }
    this.#blockOutput = block.output;
    if (this.#blockOutput > this.#left) {
      throw invalid('its content is longer than the size given in the image');
    }
    this.#blockInput = block.input;
    if (block.kind === 'lz4') {
      this.#state = TOKEN;
      return;
    }
    this.#literals = this.#blockOutput;
    this.#state = STORED;
    if (this.#literals === 0) {
      this.#afterBlock();
    }
  }
}

/** Copies bytes one by one in ascending order. If the target overlaps the end of the source, the source bytes are repeated. */
function copyBytes(out: Buffer, to: number, input: Buffer, from: number, count: number): void {
  for (let i = 0; i < count; i += 1) {
    out[to + i] = input[from + i] as number;
  }
}

/** Number of bytes in a block that {@link encodeBlock} makes. Apple's encoder has the same number. */
export const BLOCK_BYTES = 64 * 1024;
/** Block after the last one of a stream. */
export const END_BLOCK = Buffer.from('bv4$', 'latin1');
/** A match may begin only before the last 12 bytes of a block, and the last 5 bytes are literals. */
const LAST_MATCH_BYTES = 12;
const LAST_LITERALS_BYTES = 5;
const HASH_BITS = 13;
/** Multiplier that spreads four bytes over the table of positions. */
const SPREAD = 0x9e3779b1;
/** Number of bytes without a match after which the encoder takes longer steps, as a power of two. */
const PATIENCE_BITS = 6;

/** Last position of four bytes in the block, by their hash. */
const positions = new Int32Array(1 << HASH_BITS);
const encoded = Buffer.alloc(BLOCK_BYTES);

/** Returns a block with this content, which has 1 to 64 KiB. A content that does not get smaller is stored as it is. */
export function encodeBlock(content: Buffer): Buffer {
  const length = compress(content);
  const isSmaller = length !== undefined && length < content.length;
  const header = Buffer.alloc(isSmaller ? 12 : 8);
  header.writeUInt32LE(isSmaller ? MAGIC_LZ4 : MAGIC_STORED, 0);
  header.writeUInt32LE(content.length, 4);
  if (isSmaller) {
    header.writeUInt32LE(length, 8);
  }
  return Buffer.concat([header, isSmaller ? encoded.subarray(0, length) : content]);
}

/** Compresses the content into `encoded`. Returns the length, or undefined if there is no room for it. */
function compress(content: Buffer): number | undefined {
  positions.fill(-1);
  let literals = 0;
  let to = 0;
  for (let at = 0; at + LAST_MATCH_BYTES <= content.length; ) {
    const word = wordAt(content, at);
    const hash = Math.imul(word, SPREAD) >>> (32 - HASH_BITS);
    const from = positions[hash] as number;
    positions[hash] = at;
    if (from < 0 || wordAt(content, from) !== word) {
      at += 1 + ((at - literals) >> PATIENCE_BITS);
      continue;
    }
    const length = matchLength(content, from, at);
    if (!hasRoom(to, at - literals, length)) {
      return undefined;
    }
    to = writeLiterals(to, content, { from: literals, to: at }, length - MIN_MATCH);
    encoded[to] = (at - from) & 0xff;
    encoded[to + 1] = (at - from) >> 8;
    to = writeLength(to + 2, length - MIN_MATCH);
    at += length;
    literals = at;
  }
  const rest = { from: literals, to: content.length };
  return hasRoom(to, rest.to - rest.from, 0) ? writeLiterals(to, content, rest, 0) : undefined;
}

function wordAt(content: Buffer, at: number): number {
  const low = (content[at] as number) | ((content[at + 1] as number) << 8);
  const high = (content[at + 2] as number) | ((content[at + 3] as number) << 8);
  return low | (high << 16);
}

function matchLength(content: Buffer, from: number, at: number): number {
  const end = content.length - LAST_LITERALS_BYTES - at;
  let length = MIN_MATCH;
  while (length < end && content[from + length] === content[at + length]) {
    length += 1;
  }
  return length;
}

/** Returns whether literals and a match of these lengths certainly have room in `encoded`. */
function hasRoom(to: number, literals: number, match: number): boolean {
  return to + literals + (literals >> 7) + (match >> 7) + LAST_MATCH_BYTES <= encoded.length;
}

/** Writes a token and literals at the position `to` of `encoded`. `extra` is the length of the match over the least. Returns the next position. */
function writeLiterals(
  to: number,
  content: Buffer,
  literals: { from: number; to: number },
  extra: number,
): number {
  const count = literals.to - literals.from;
  encoded[to] = (Math.min(count, LONG) << 4) | Math.min(extra, LONG);
  const at = writeLength(to + 1, count);
  if (count < SHORT_COPY) {
    copyBytes(encoded, at, content, literals.from, count);
  } else {
    content.copy(encoded, at, literals.from, literals.to);
  }
  return at + count;
}

/** Writes the part of a length that does not fit into its token. Returns the next position. */
function writeLength(to: number, length: number): number {
  let at = to;
  for (let rest = length - LONG; rest >= 0; rest -= 255) {
    encoded[at] = Math.min(rest, 255);
    at += 1;
  }
  return at;
}
