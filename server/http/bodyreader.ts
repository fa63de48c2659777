/**
 * Reads the bodies of requests. The total size of the bodies that are being read is limited, because thousands of connections can send
 * bodies at the same time.
 */
import type { IncomingHttpHeaders } from 'node:http';
import type { Readable } from 'node:stream';
import { StatusError } from './errors.ts';

/** Largest body of a request in bytes. Only uploads of files can be larger, because files are not held in memory. */
export const BODY_BYTES = 1024 * 1024;
/**
 * Number of bytes at the start of each body that do not count in {@link TOTAL_BYTES}. Most bodies are shorter than this number, so they are
 * never refused because of that limit. For all 2,048 connections together, these bytes need 16 MiB.
 */
const FREE_BYTES = 8 * 1024;
/** Limit in bytes for the total of all bodies that are being read. The container of the server has 512 MiB of memory. */
const TOTAL_BYTES = 48 * 1024 * 1024;

/**
 * Reports whether the body of a request can be longer than {@link FREE_BYTES}. For a body in chunks, the result is always true, because its
 * length is not known in advance.
 */
export function mayBeLarge(headers: IncomingHttpHeaders): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > FREE_BYTES;
}

export class BodyReader {
  /**
   * Total size in bytes of all bodies that are being read, without the first {@link FREE_BYTES} of each body. The limit for it is
   * {@link TOTAL_BYTES}.
   */
  #used = 0;

  /**
   * Reads the whole body as text. @throws StatusError 413 when the body is too large, 503 when all clients together send too much; Error
   * when the connection ends before the end of the body.
   */
  async read(body: Readable): Promise<string> {
    // The bytes are copied into one buffer, because clients choose the size of chunks. A list of many small chunks would need many times
    // the memory of their bytes.
    let buffer: Buffer = Buffer.alloc(0);
    let length = 0;
    try {
      for await (const chunk of body.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
        if (length + chunk.length > buffer.length) {
          buffer = this.#grown(buffer, length + chunk.length);
        }
        length += chunk.copy(buffer, length);
      }
      return buffer.toString('utf8', 0, length);
    } finally {
      this.#used -= counted(buffer.length);
      // The rest of the body is read and dropped, because clients read the answer only after they have sent the whole body.
      body.resume();
    }
  }

  #grown(buffer: Buffer, needed: number): Buffer {
    if (needed > BODY_BYTES) {
      throw new StatusError(413, `The body is larger than ${BODY_BYTES} bytes`);
    }
    const size = 2 ** Math.ceil(Math.log2(needed));
    const more = counted(size) - counted(buffer.length);
    if (this.#used + more > TOTAL_BYTES) {
      throw new StatusError(503, 'Too many large requests arrive at the same time. Try again later');
    }
    this.#used += more;
    const grown = Buffer.allocUnsafeSlow(size);
    buffer.copy(grown);
    return grown;
  }
}

function counted(size: number): number {
  return Math.max(0, size - FREE_BYTES);
}
