/** The frames of SPDY/3.1 that the API server sends and understands, and the compressed headers of their streams. */
import { constants, createInflate } from 'node:zlib';

/** Words of the dictionary. In the dictionary, the length of each word comes before the word, as in a block of headers. */
const HEADER_STRINGS = (
  'options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,accept-language,' +
  'accept-ranges,age,allow,authorization,cache-control,connection,content-base,content-encoding,' +
  'content-language,content-length,content-location,content-md5,content-range,content-type,date,' +
  'etag,expect,expires,from,host,if-match,if-modified-since,if-none-match,if-range,' +
  'if-unmodified-since,last-modified,location,max-forwards,pragma,proxy-authenticate,' +
  'proxy-authorization,range,referer,retry-after,server,te,trailer,transfer-encoding,upgrade,' +
  'user-agent,vary,via,warning,www-authenticate,method,get,status,200 OK,version,HTTP/1.1,url,' +
  'public,set-cookie,keep-alive,origin'
).split(',');

const REST =
  '100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505' +
  '203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized' +
  '403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable' +
  'Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT' +
  'chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,' +
  'text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.';

export const SPDY_DICTIONARY = Buffer.concat([
  ...HEADER_STRINGS.flatMap((word) => [uint32(word.length), Buffer.from(word)]),
  Buffer.from(REST),
]);

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

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
