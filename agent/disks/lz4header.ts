/** Headers of the blocks in Apple's LZ4 streams. */
import { DiskError } from './disk.ts';

const MAGIC_LZ4 = 0x31347662;
const MAGIC_STORED = 0x2d347662;
const MAGIC_END = 0x24347662;
const MAGIC_BYTES = 4;

/** Header of a block. `input` is the length of the block after the header. `output` is the length after decoding. Both are in bytes. */
export type Block = { kind: 'lz4' | 'stored'; input: number; output: number } | { kind: 'end' };

/** Parser of one block header. The bytes of the header can come in pieces. */
export class BlockHeader {
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

export function invalid(what: string): DiskError {
  return new DiskError('invalid', `The LZ4 stream is broken: ${what}`);
}
