/** Encodes as Apple's Compression library frames LZ4: for tests of what reads it. */

const BLOCK_BYTES = 64 * 1024;
const MIN_MATCH = 4;
/** Where LZ4 lets the last match of a block begin, and how much must be literals behind it. */
const LAST_MATCH = 12;
const LAST_LITERALS = 5;
const FURTHEST = 65_535;
const HASH_BITS = 16;

export interface Lz4Options {
  blockBytes?: number;
  /** Blocks that would not become smaller are stored as they are. True when absent. */
  stored?: boolean;
  /** Blocks refer to what those before them give, as some encoders let them. */
  linked?: boolean;
}

export function lz4Stream(raw: Buffer, options: Lz4Options = {}): Buffer {
  const { blockBytes = BLOCK_BYTES, stored = true, linked = false } = options;
  const parts: Buffer[] = [];
  const seen = new Int32Array(1 << HASH_BITS).fill(-1);
  for (let start = 0; start < raw.length; start += blockBytes) {
    const end = Math.min(start + blockBytes, raw.length);
    const block = encodeBlock(raw, start, end, { seen, from: linked ? 0 : start });
    if (stored && block.length >= end - start) {
      parts.push(lz4Header('bv4-', end - start), raw.subarray(start, end));
    } else {
      parts.push(lz4Header('bv41', end - start, block.length), block);
    }
  }
  return Buffer.concat([...parts, Buffer.from('bv4$')]);
}

export function lz4Header(magic: string, ...sizes: number[]): Buffer {
  const bytes = Buffer.alloc(4 + sizes.length * 4);
  bytes.write(magic, 'latin1');
  for (const [index, size] of sizes.entries()) {
    bytes.writeUInt32LE(size, 4 + index * 4);
  }
  return bytes;
}

interface Earlier {
  /** By the hash of four bytes: where they were last. */
  seen: Int32Array;
  /** Nothing before may be referred to. */
  from: number;
}

function encodeBlock(raw: Buffer, start: number, end: number, { seen, from }: Earlier): Buffer {
  const out = new Output(end - start);
  let literalsFrom = start;
  for (let at = start; at + LAST_MATCH <= end; ) {
    const word = raw.readUInt32LE(at);
    const hash = Math.imul(word, 2_654_435_761) >>> (32 - HASH_BITS);
    const before = seen[hash] ?? -1;
    seen[hash] = at;
    if (before < from || at - before > FURTHEST || raw.readUInt32LE(before) !== word) {
      at += 1;
      continue;
    }
    let length = MIN_MATCH;
    while (at + length < end - LAST_LITERALS && raw[before + length] === raw[at + length]) {
      length += 1;
    }
    out.sequence(raw.subarray(literalsFrom, at), { offset: at - before, length });
    at += length;
    literalsFrom = at;
  }
  out.sequence(raw.subarray(literalsFrom, end), undefined);
  return out.bytes();
}

class Output {
  readonly #bytes: Buffer;
  #length = 0;

  constructor(rawLength: number) {
    this.#bytes = Buffer.alloc(rawLength + Math.ceil(rawLength / 255) + 16);
  }

  bytes(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }

  sequence(literals: Buffer, match: { offset: number; length: number } | undefined): void {
    const matchLength = match === undefined ? 0 : match.length - MIN_MATCH;
    this.#byte((Math.min(literals.length, 15) << 4) | Math.min(matchLength, 15));
    this.#long(literals.length);
    this.#length += literals.copy(this.#bytes, this.#length);
    if (match === undefined) {
      return;
    }
    this.#byte(match.offset & 255);
    this.#byte(match.offset >> 8);
    this.#long(matchLength);
  }

  #byte(value: number): void {
    this.#bytes[this.#length] = value;
    this.#length += 1;
  }

  #long(length: number): void {
    if (length < 15) {
      return;
    }
    let left = length - 15;
    for (; left >= 255; left -= 255) {
      this.#byte(255);
    }
    this.#byte(left);
  }
}
