/**
 * Calls of gRPC over HTTP/2, and the few messages of Protocol Buffers that the guest agent of Tart has. The peer is a guest, so each size is
 * checked.
 */
import { type ClientHttp2Session, type ClientHttp2Stream, connect, constants } from 'node:http2';
import type { Socket } from 'node:net';
import { unlessAborted } from '../../../base/time.ts';

/** Largest message of the guest agent. It sends output in pieces of 4 KiB. */
const MESSAGE_BYTES = 64 * 1024;
/** Compression flag and length before each message. */
export const PREFIX_BYTES = 5;
/** Largest explanation of an error that is shown. */
const EXPLANATION_CHARACTERS = 300;
/**
 * Memory in MB that a connection may take for headers and for data that waits. The input of a command waits there, and may have 1 MiB. With less
 * memory, the answer of a command that does not read its input would be refused.
 */
const SESSION_MEMORY = 2;
/** Types of fields. */
const VARINT = 0;
const BYTES = 2;
const FIXED_BYTES: Readonly<Record<number, number>> = { 1: 8, 5: 4 };
/** Longest number in bytes. Seven bits of each byte count. */
const VARINT_BYTES = 10;
/** Bytes of a number that can change its lowest 32 bits. */
const INT32_BYTES = 5;
/** Largest number of fields in a message. Those of the guest agent have one. */
const FIELDS = 16;

/** Error for a peer that does not follow the protocol. */
export class GrpcError extends Error {
  override readonly name = 'GrpcError';
}

/** Error for a call that the guest agent refuses. The message is its explanation. */
export class GrpcRefusal extends Error {
  override readonly name = 'GrpcRefusal';
}

/** A field of a message. */
export type GrpcField = readonly [number: number, value: number | string | boolean | Buffer];

/** Returns a message with these fields. */
export function encodeFields(fields: readonly GrpcField[]): Buffer {
  const parts = fields.map(([number, value]) => {
    if (typeof value === 'number' || typeof value === 'boolean') {
      return Buffer.concat([encodeNumber((number << 3) | VARINT), encodeNumber(Number(value))]);
    }
    const bytes = Buffer.from(value as string);
    return Buffer.concat([encodeNumber((number << 3) | BYTES), encodeNumber(bytes.length), bytes]);
  });
  return Buffer.concat(parts);
}

/** `value` is at least 0. */
function encodeNumber(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest > 0x7f; rest = Math.floor(rest / 0x80)) {
    bytes.push((rest % 0x80) | 0x80);
  }
  return Buffer.of(...bytes, rest);
}

/** Returns the fields of a message that are numbers of 32 bits, texts or messages. @throws GrpcError when the message is broken. */
export function decodeFields(message: Buffer): Map<number, number | Buffer> {
  const fields = new Map<number, number | Buffer>();
  const reader = new FieldReader(message);
  for (let count = 0; !reader.isAtEnd; count += 1) {
    if (count === FIELDS) {
      throw broken();
    }
    const [number, value] = reader.next();
    if (value !== undefined) {
      fields.set(number, value);
    }
  }
  return fields;
}

function broken(): GrpcError {
  return new GrpcError('A message of the guest agent is broken');
}

/** Reads the fields of a message one after the other. */
class FieldReader {
  readonly #message: Buffer;
  #at = 0;

  constructor(message: Buffer) {
    this.#message = message;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#message.length;
  }

  /** Returns the number of the next field, and its value. The value is undefined if it has a type that is only skipped. */
  next(): [number, number | Buffer | undefined] {
    const key = this.#number();
    const [number, type] = [key >>> 3, key & 7];
    if (type === VARINT) {
      return [number, this.#number()];
    }
    const length = type === BYTES ? this.#number() >>> 0 : (FIXED_BYTES[type] ?? Number.POSITIVE_INFINITY);
    const end = this.#at + length;
    if (end > this.#message.length) {
      throw broken();
    }
    const bytes = this.#message.subarray(this.#at, end);
    this.#at = end;
    return [number, type === BYTES ? bytes : undefined];
  }

  /** Reads the lowest 32 bits of a number, with their sign. */
  #number(): number {
    let value = 0;
    for (let index = 0; index < VARINT_BYTES; index += 1) {
      const byte = this.#message[this.#at];
      if (byte === undefined) {
        break;
      }
      this.#at += 1;
      value |= index < INT32_BYTES ? (byte & 0x7f) << (7 * index) : 0;
      if (byte < 0x80) {
        return value;
      }
    }
    throw broken();
  }
}

/** A connection for calls, which ends with the signal. */
export class GrpcConnection {
  readonly #session: ClientHttp2Session;

  constructor(socket: Socket, signal: AbortSignal) {
    const session = connect('http://localhost', {
      createConnection: () => socket,
      maxSessionMemory: SESSION_MEMORY,
      settings: { enablePush: false },
    });
    const end = (): void => session.destroy();
    signal.addEventListener('abort', end);
    session.once('close', () => signal.removeEventListener('abort', end));
    // The calls tell their errors.
    session.on('error', () => undefined);
    this.#session = session;
  }

  /**
   * Resolves when the peer answers.
   *
   * @throws GrpcError when it is no server of HTTP/2, or the connection ends before; the signal's reason when the signal aborts.
   */
  async ping(signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const end = (): void => reject(new GrpcError('The guest agent does not answer'));
    const session = this.#session.once('close', end).once('error', end);
    try {
      // A closed session refuses at once.
      if (!session.destroyed) {
        session.ping((error) => (error === null ? resolve() : end()));
      } else {
        end();
      }
      await unlessAborted(promise, signal);
    } finally {
      session.off('close', end).off('error', end);
    }
  }

  /**
   * Calls a method with these messages. Yields the messages of the answer.
   *
   * @throws GrpcRefusal when the peer refuses the call; GrpcError when the answer is broken or ends too early.
   */
  async *call(path: string, messages: readonly Buffer[]): AsyncGenerator<Buffer, void, undefined> {
    const stream = this.#session.request({
      [constants.HTTP2_HEADER_METHOD]: 'POST',
      [constants.HTTP2_HEADER_PATH]: path,
      'content-type': 'application/grpc',
      te: 'trailers',
    });
    const outcome = readOutcome(stream);
    for (const message of messages) {
      const prefix = Buffer.alloc(PREFIX_BYTES);
      prefix.writeUInt32BE(message.length, 1);
      stream.write(Buffer.concat([prefix, message]));
    }
    try {
      yield* splitMessages(stream);
      const refusal = outcome();
      if (refusal !== undefined) {
        throw new GrpcRefusal(refusal);
      }
    } finally {
      stream.close(constants.NGHTTP2_CANCEL);
    }
  }

  close(): void {
    this.#session.destroy();
  }
}

/** Follows the headers of an answer. The function that it returns gives the explanation of a refusal. @throws GrpcError without a status. */
function readOutcome(stream: ClientHttp2Stream): () => string | undefined {
  const status = new Map<string, unknown>();
  const note = (headers: Readonly<Record<string, unknown>>): void =>
    ['grpc-status', 'grpc-message'].forEach(
      (name) => headers[name] !== undefined && status.set(name, headers[name]),
    );
  stream.on('response', note).on('trailers', note);
  return () => {
    const code = status.get('grpc-status');
    if (code === undefined) {
      throw new GrpcError('The answer of the guest agent ended too early');
    }
    return code === '0' ? undefined : explain(status.get('grpc-message'), code);
  };
}

/** Returns the explanation of the peer as one line of plain characters. */
function explain(message: unknown, code: unknown): string {
  const text = typeof message === 'string' ? message.replaceAll('%22', '"').replaceAll('%20', ' ') : '';
  const plain = text.replaceAll(/[^\x20-\x7e]/g, ' ').slice(0, EXPLANATION_CHARACTERS);
  return plain === '' ? `The guest agent refuses the call with status ${Number(code)}` : plain;
}

async function* splitMessages(stream: ClientHttp2Stream): AsyncGenerator<Buffer, void, undefined> {
  let prefix = new Filling(PREFIX_BYTES);
  let message: Filling | undefined;
  for await (const piece of stream as AsyncIterable<Buffer>) {
    for (let rest = piece; rest.length > 0; ) {
      rest = (message ?? prefix).take(rest);
      if (message === undefined && prefix.isFull) {
        message = new Filling(readLength(prefix.bytes));
      }
      if (message?.isFull === true) {
        yield message.bytes;
        [prefix, message] = [new Filling(PREFIX_BYTES), undefined];
      }
    }
  }
}

/** Reads the length of a message from its prefix. @throws GrpcError when it is too long or compressed. */
function readLength(prefix: Buffer): number {
  const length = prefix.readUInt32BE(1);
  if (prefix[0] !== 0 || length > MESSAGE_BYTES) {
    throw new GrpcError('The guest agent sends a message that the agent does not read');
  }
  return length;
}

/** Bytes of a known length that come in pieces. Each byte is copied once, because the peer can send pieces of one byte. */
class Filling {
  readonly bytes: Buffer;
  #used = 0;

  constructor(length: number) {
    this.bytes = Buffer.alloc(length);
  }

  get isFull(): boolean {
    return this.#used === this.bytes.length;
  }

  /** Takes what still belongs to these bytes, and returns the rest of the piece. */
  take(piece: Buffer): Buffer {
    const count = piece.copy(this.bytes, this.#used);
    this.#used += count;
    return piece.subarray(count);
  }
}
