/** Reads the compressed headers of SPDY/3.1 streams. */
import { constants, createInflate } from 'node:zlib';
import { SPDY_DICTIONARY } from './dictionary.ts';
import { ProtocolError } from './frames.ts';

/** Limit of one block of headers after it is unpacked, in bytes. Real clients send three short headers. A larger block is an attack. */
const HEADER_BYTES = 16 * 1024;

export type Headers = ReadonlyMap<string, string>;

/** Unpacks the blocks of headers of one connection. A block refers to earlier blocks, so every block is unpacked, in order of arrival. */
export class HeaderReader {
  readonly #inflate = createInflate({ dictionary: SPDY_DICTIONARY, flush: constants.Z_SYNC_FLUSH });
  #pieces: Buffer[] = [];
  #bytes = 0;
  #error: Error | undefined;

  constructor() {
    this.#inflate.on('readable', () => this.#collect());
    this.#inflate.on('error', (error) => {
      this.#error ??= new ProtocolError(`the headers cannot be unpacked: ${error.message}`);
    });
  }

  /** Returns the headers of a block, with names in lower case. @throws ProtocolError when the block is invalid or too long. */
  async read(block: Buffer): Promise<Headers> {
    this.#pieces = [];
    this.#bytes = 0;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#inflate.once('close', resolve);
    this.#inflate.write(block, () => resolve());
    await promise;
    this.#inflate.off('close', resolve);
    this.#collect();
    if (this.#error !== undefined) {
      throw this.#error;
    }
    return parseHeaders(Buffer.concat(this.#pieces));
  }

  close(): void {
    this.#inflate.destroy();
  }

  #collect(): void {
    for (;;) {
      const piece = this.#inflate.read() as Buffer | null;
      if (piece === null || this.#error !== undefined) {
        return;
      }
      this.#bytes += piece.length;
      if (this.#bytes > HEADER_BYTES) {
        this.#error = new ProtocolError(`the headers of a stream have more than ${HEADER_BYTES} bytes`);
        this.#inflate.destroy();
        return;
      }
      this.#pieces.push(piece);
    }
  }
}

/**
 * Parses a block: first the number of headers, then the name and the value of each header. Each name and each value is
 * preceded by its length. @throws ProtocolError when the lengths do not match the size of the block.
 */
function parseHeaders(block: Buffer): Headers {
  let at = 0;
  const number = (): number => {
    if (at + 4 > block.length) {
      throw new ProtocolError('the headers of a stream end too early');
    }
    at += 4;
    return block.readUInt32BE(at - 4);
  };
  const text = (): string => {
    const length = number();
    if (length > block.length - at) {
      throw new ProtocolError('the headers of a stream end too early');
    }
    at += length;
    return block.toString('latin1', at - length, at);
  };
  const headers = new Map<string, string>();
  for (let left = number(); left > 0; left -= 1) {
    headers.set(text().toLowerCase(), text());
  }
  if (at !== block.length) {
    throw new ProtocolError('the headers of a stream are followed by other bytes');
  }
  return headers;
}
