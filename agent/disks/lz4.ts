/**
 * The LZ4 streams of Apple's Compression library: blocks `bv41` (decoded size, encoded size, LZ4 block), `bv4-` (size, bytes as
 * they are) and `bv4$` (the end), sizes as 32-bit little-endian. A block may refer to what the blocks before it gave.
 */
import { BlockHeader, invalid } from './lz4header.ts';

/** How far back a match may reach. */
const WINDOW_BYTES = 64 * 1024;
/** Given on at a time. Decoding one takes some milliseconds: in between others get their turn. */
const PIECE_BYTES = 1024 * 1024;
const MIN_MATCH = 4;
/** A length of four bits goes on in the next bytes when all are set. */
const LONG = 15;
/** Shorter copies are faster byte by byte. */
const SHORT_COPY = 32;

/** A sequence whose two lengths fit into its token has at most so much input, with one byte of the next one, and output. */
const SHORT_INPUT_BYTES = 1 + 14 + 2 + 1;
const SHORT_OUTPUT_BYTES = 14 + 14 + MIN_MATCH;

/** The meaning of the next byte of the stream. `MATCH`: output is repeated before the next byte. */
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
  /** The place in `#out` that is written next. The bytes before it are the window. */
  #position = WINDOW_BYTES;
  /** Decoded bytes to come. */
  #left: number;
  readonly #size: number;

  #input: Buffer = Buffer.alloc(0);
  #at = 0;
  #state = HEADER;
  #header = new BlockHeader();
  /** Bytes of input and output of the block that are still to come. */
  #blockInput = 0;
  #blockOutput = 0;
  #literals = 0;
  #match = 0;
  #offset = 0;

  /** `size`: of all that the stream gives, in bytes. */
  constructor(size: number) {
    this.#size = size;
    this.#left = size;
  }

  /** Pieces of output, each valid until the next one is asked for. @throws DiskError */
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

  /** The last piece, which may be empty. @throws DiskError when the stream is not at its end. */
  end(): Buffer {
    if (this.#state !== END) {
      throw invalid('it ends in the middle');
    }
    if (this.#left > 0) {
      throw invalid(`it gives ${this.#left} bytes less than it should`);
    }
    return this.#out.subarray(WINDOW_BYTES, this.#position);
  }

  /** The bytes that were given on become the window. */
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
        throw invalid('something follows its end');
      default:
        return this.#length();
    }
  }

  #byte(): number {
    if (this.#blockInput === 0) {
      throw invalid('a block ends in the middle');
    }
    this.#blockInput -= 1;
    const byte = this.#input[this.#at] ?? 0;
    this.#at += 1;
    return byte;
  }

  /**
   * Sequences whose two lengths fit into their tokens, while all of one lies in input and output: most of them, at several times
   * the speed of the single steps. Leaves to those whatever else comes, also what is wrong.
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
    if (this.#state === LITERAL_LENGTH) {
      this.#literals += byte;
      if (this.#literals > this.#blockOutput) {
        throw invalid('a block gives more than it says');
      }
      if (byte !== 255) {
        this.#state = LITERALS;
      }
    } else {
      this.#match += byte;
      if (this.#match > this.#blockOutput) {
        throw invalid('a block gives more than it says');
      }
      if (byte !== 255) {
        this.#state = MATCH;
      }
    }
  }

  /** Literals of a block, or all of one that is stored. */
  #copy(): void {
    if (this.#literals > this.#blockInput) {
      throw invalid('a block ends in the middle');
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
      throw invalid('a block gives more than it says');
    }
    this.#position += count;
    this.#blockOutput -= count;
    this.#left -= count;
  }

  /** A block's last sequence has literals only, and so has a stored block. */
  #afterLiterals(): void {
    if (this.#blockInput > 0) {
      this.#state = OFFSET_LOW;
    } else {
      this.#afterBlock();
    }
  }

  #afterBlock(): void {
    if (this.#blockOutput > 0 || this.#blockInput > 0) {
      throw invalid('a block gives less than it says');
    }
    this.#state = HEADER;
    this.#header = new BlockHeader();
  }

  #offsetHigh(): void {
    this.#offset += this.#byte() * 256;
    if (this.#offset === 0 || this.#offset > this.#size - this.#left) {
      throw invalid('it refers to what lies before its beginning');
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
      throw invalid('it gives more than it should');
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

/** Byte by byte, from low to high: the source may overlap what is written, and repeats itself then. */
function copyBytes(out: Buffer, to: number, input: Buffer, from: number, count: number): void {
  for (let i = 0; i < count; i += 1) {
    out[to + i] = input[from + i] as number;
  }
}
