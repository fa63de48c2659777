/** The frames of SPDY/3.1 that the API server sends and understands. */
import { SPDY_DICTIONARY, uint32 } from './dictionary.ts';

/** Error that is thrown when the peer breaks the protocol. After such an error, the connection ends. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
}

export const FRAME_HEADER_BYTES = 8;
/** Types of control frames. */
export const TYPE = { synStream: 1, synReply: 2, reset: 3, ping: 6, goAway: 7 } as const;
/** Flag that marks a frame as the last frame of its sender on the stream. */
export const FIN = 1;
/** Reasons in frames of the type `reset`. */
export const RESET = { protocolError: 1, refusedStream: 3, cancel: 5 } as const;
/** Reasons in frames of the type `goAway`. */
export const GO_AWAY = { ok: 0, protocolError: 1 } as const;

const CONTROL = 0x80_00;
const VERSION = 3;
/** Mask for the bits of a stream's id. The highest bit is not part of the id. */
const ID_BITS = 0x7f_ff_ff_ff;

export type Frame =
  | { kind: 'control'; type: number; flags: number; length: number }
  | { kind: 'data'; stream: number; flags: number; length: number };

/** Parses the first 8 bytes of a frame. @throws ProtocolError when a control frame belongs to a protocol version other than 3. */
export function parseFrame(header: Buffer): Frame {
  const first = header.readUInt16BE(0);
  const flags = header.readUInt8(4);
  const length = header.readUIntBE(5, 3);
  if ((first & CONTROL) === 0) {
    return { kind: 'data', stream: header.readUInt32BE(0), flags, length };
  }
  const version = first & ~CONTROL;
  if (version !== VERSION) {
    throw new ProtocolError(`a frame has version ${version}; the only version is ${VERSION}`);
  }
  return { kind: 'control', type: header.readUInt16BE(2), flags, length };
}

/** Reads the id of a stream. */
export function idAt(body: Buffer, offset: number): number {
  return body.readUInt32BE(offset) & ID_BITS;
}

function control(type: number, body: Buffer): Buffer {
  const header = Buffer.alloc(FRAME_HEADER_BYTES);
  header.writeUInt16BE(CONTROL | VERSION, 0);
  header.writeUInt16BE(type, 2);
  header.writeUIntBE(body.length, 5, 3);
  return Buffer.concat([header, body]);
}

/** Returns the header of a data frame. */
export function dataHeader(stream: number, flags: number, length: number): Buffer {
  const header = Buffer.alloc(FRAME_HEADER_BYTES);
  header.writeUInt32BE(stream, 0);
  header.writeUInt8(flags, 4);
  header.writeUIntBE(length, 5, 3);
  return header;
}

/** First bytes of the compressed data of a connection: the header of zlib, with the checksum of the dictionary. */
const ZLIB_BEGIN = Buffer.concat([Buffer.from([0x78, 0xbb]), uint32(adler32(SPDY_DICTIONARY))]);
/**
 * Compressed form of an empty list of headers, for a frame without headers. It consists of two stored blocks of deflate: one with the
 * number of headers (0), and an empty one. Without the empty block, the client waits for more bytes.
 */
const NO_HEADERS = Buffer.from([0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);

/** Returns the frame with which the server accepts a new stream. `first` is true for the first such frame of the connection. */
export function synReply(stream: number, first: boolean): Buffer {
  return control(TYPE.synReply, Buffer.concat([uint32(stream), ...(first ? [ZLIB_BEGIN] : []), NO_HEADERS]));
}

export function reset(stream: number, reason: number): Buffer {
  return control(TYPE.reset, Buffer.concat([uint32(stream), uint32(reason)]));
}

export function ping(id: number): Buffer {
  return control(TYPE.ping, uint32(id));
}

/** Returns the frame that ends a connection. `last` is the id of the last stream that the client has opened. */
export function goAway(last: number, reason: number): Buffer {
  return control(TYPE.goAway, Buffer.concat([uint32(last), uint32(reason)]));
}

function adler32(bytes: Buffer): number {
  let [a, b] = [1, 0];
  for (const byte of bytes) {
    a = (a + byte) % 65_521;
    b = (b + a) % 65_521;
  }
  return b * 65_536 + a;
}
