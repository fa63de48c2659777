/**
 * Reads the bodies of requests as JSON. The total size of the bodies that are being read is limited, because thousands of connections can
 * send bodies at the same time. One user can take only a part of it. The structure is counted while the bytes arrive, because a body with
 * many values would block the process while it is parsed.
 */
import type { IncomingMessage } from 'node:http';
import { JsonCheck, JsonError } from '../../base/json.ts';
import { UserShares } from './shares.ts';
import { StatusError } from './errors.ts';
import type { UnreadBodies } from './unreadbodies.ts';

const MEBIBYTE = 1024 * 1024;
/** Largest body of a request in bytes. Only uploads of files can be larger, because files are not held in memory. */
export const BODY_BYTES = MEBIBYTE;
/**
 * Largest number of values in a body. The longest lists of honest bodies are the 4,096 hosts of an image cache request. To parse this
 * number of values takes at most 26 ms.
 */
const BODY_ITEMS = 16_384;
/**
 * Number of bytes at the start of each body that do not count in {@link TOTAL_BYTES}. Most bodies are shorter than this number, so they are
 * never refused because of that limit. For all 2,048 connections together, these bytes need 16 MiB.
 */
const FREE_BYTES = 8 * 1024;
/** Limit in bytes for the total of all bodies that are being read. The container of the server has 512 MiB of memory. */
const TOTAL_BYTES = 48 * MEBIBYTE;
/**
 * Limit in bytes for all bodies of one user that are being read: a few large bodies, or hundreds with user data of 16 KiB. The other bytes
 * are for other users.
 */
const USER_BYTES = TOTAL_BYTES / 6;

export class BodyReader {
  /** Bytes of the bodies that are being read, without the first {@link FREE_BYTES} of each body. */
  readonly #shares = new UserShares({
    user: USER_BYTES,
    total: TOTAL_BYTES,
    refuseUser: (user) =>
      new StatusError(
        429,
        `The bodies that user ${user} sends at the same time have more than ${USER_BYTES} bytes. Try again later`,
      ),
    refuseAll: () => new StatusError(503, 'Too many large requests arrive at the same time. Try again later'),
  });
  readonly #unread: UnreadBodies;

  constructor(unread: UnreadBodies) {
    this.#unread = unread;
  }

  /**
   * Reads and parses the whole body. An empty body counts as an object without fields. `user` is the name of the caller.
   *
   * @throws StatusError 400 when the body is not JSON, 413 when it is too large or has too many values, 429 when the user sends too much at
   * the same time, 503 when all users together send too much. @throws Error when the connection ends before the end of the body.
   */
  async read(body: IncomingMessage, user: string): Promise<unknown> {
    const check = new JsonCheck({ bytes: BODY_BYTES, items: BODY_ITEMS });
    // The bytes are copied into one buffer, because clients choose the size of chunks. A list of many small chunks would need many times
    // the memory of their bytes.
    let buffer: Buffer = Buffer.alloc(0);
    let length = 0;
    try {
      for await (const chunk of body.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
        check.push(chunk);
        if (length + chunk.length > buffer.length) {
          buffer = this.#grown(buffer, length + chunk.length, user);
        }
        length += chunk.copy(buffer, length);
      }
      const bytes = buffer.subarray(0, length);
      return isBlank(bytes) ? {} : check.parse(bytes);
    } catch (error) {
      throw error instanceof JsonError ? refusalOf(error) : error;
    } finally {
      this.#shares.release(user, counted(buffer.length));
      this.#unread.drop(body);
    }
  }

  #grown(buffer: Buffer, needed: number, user: string): Buffer {
    const size = 2 ** Math.ceil(Math.log2(needed));
    this.#shares.take(user, counted(size) - counted(buffer.length));
    const grown = Buffer.allocUnsafeSlow(size);
    buffer.copy(grown);
    return grown;
  }
}

function counted(size: number): number {
  return Math.max(0, size - FREE_BYTES);
}

function isBlank(bytes: Buffer): boolean {
  return bytes.length <= FREE_BYTES && bytes.toString('utf8').trim() === '';
}

function refusalOf({ fault, message }: JsonError): StatusError {
  switch (fault) {
    case 'bytes':
      return new StatusError(413, `The body is larger than ${BODY_BYTES} bytes`);
    case 'syntax':
      return new StatusError(400, 'the body is not JSON');
    default:
      return new StatusError(413, `The body ${message}`);
  }
}
