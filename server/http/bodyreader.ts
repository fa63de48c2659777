/** Reads the bodies of requests. Thousands of connections may each send one, so all bodies that are being read have a limit together. */
import type { IncomingHttpHeaders } from 'node:http';
import type { Readable } from 'node:stream';
import { StatusError } from './errors.ts';

/** Largest body of a request in bytes. Only uploads are larger, and they are streams. */
export const BODY_BYTES = 1024 * 1024;
/**
 * Number of bytes at the start of each body that do not count for the limit. Common requests are shorter, so nobody can keep them out. All
 * 2,048 connections together have 16 MiB of such bytes.
 */
const FREE_BYTES = 8 * 1024;
/** Limit of all other bytes. The container of the server has 512 MiB. */
const TOTAL_BYTES = 48 * 1024 * 1024;

/** Reports whether the body of a request may have bytes that count. The length of a body in chunks is not known before its end. */
export function mayBeLarge(headers: IncomingHttpHeaders): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > FREE_BYTES;
}

export class BodyReader {
  /** Bytes that count, of all bodies that are being read. */
  #used = 0;

  /** Reads the whole body as text. @throws StatusError 413 when it is too large, 503 when others send too much; Error when it breaks off. */
  async read(body: Readable): Promise<string> {
    // Senders choose the size of chunks. A list of small chunks would need many times the memory of their bytes.
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
      // Clients read an early answer only after they have sent the whole body.
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
      throw new StatusError(503, 'Too many large requests arrive at once: try again later');
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
