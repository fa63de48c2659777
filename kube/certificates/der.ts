/**
 * Reads and writes the part of DER (X.690) that certificate requests need. The reader is strict, so that no other reader can understand the
 * same bytes differently. It accepts only tags of one byte, definite lengths in their shortest form, and complete elements.
 */

/** Tags of the universal class of ASN.1. The bit `0x20` marks an element that consists of other elements. */
export const TAGS = {
  integer: 0x02,
  bitString: 0x03,
  octetString: 0x04,
  objectIdentifier: 0x06,
  utf8String: 0x0c,
  printableString: 0x13,
  sequence: 0x30,
  set: 0x31,
} as const;

export interface Element {
  readonly tag: number;
  readonly content: Buffer;
  /** Tag, length and content of the element, as they were received. */
  readonly raw: Buffer;
}

/** Error for bytes that are not DER. */
export class DerError extends Error {
  override readonly name = 'DerError';
}

const LONG_TAG = 0x1f;
const LONG_LENGTH = 0x80;
/**
 * Largest number of bytes that encode the length of an element. 3 bytes allow 16 MiB, which is more than the API server accepts. A
 * certificate request has only a few hundred bytes.
 */
const LENGTH_BYTES_MAXIMUM = 3;
const HEADER_BYTES = 2;

/** Reads all elements of `bytes`, up to the last byte. @throws DerError when the bytes are not DER. */
export function readElements(bytes: Buffer): Element[] {
  const found: Element[] = [];
  for (let at = 0; at < bytes.length; ) {
    const element = readElement(bytes.subarray(at));
    found.push(element);
    at += element.raw.length;
  }
  return found;
}

/** Encodes one element. Its content consists of all `contents`, one after another. */
export function encode(tag: number, ...contents: readonly Buffer[]): Buffer {
  const content = Buffer.concat(contents);
  return Buffer.concat([Buffer.from([tag]), lengthBytes(content.length), content]);
}

function readElement(bytes: Buffer): Element {
  const tag = byteAt(bytes, 0);
  if ((tag & LONG_TAG) === LONG_TAG) {
    throw new DerError('a tag is longer than one byte');
  }
  const { length, headerLength } = readLength(bytes);
  const end = headerLength + length;
  if (end > bytes.length) {
    throw new DerError('an element is cut off');
  }
  return { tag, content: bytes.subarray(headerLength, end), raw: bytes.subarray(0, end) };
}

function readLength(bytes: Buffer): { length: number; headerLength: number } {
  const first = byteAt(bytes, 1);
  if (first < LONG_LENGTH) {
    return { length: first, headerLength: HEADER_BYTES };
  }
  const count = first - LONG_LENGTH;
  if (count === 0 || count > LENGTH_BYTES_MAXIMUM) {
    throw new DerError('a length is indefinite or too large');
  }
  const headerLength = HEADER_BYTES + count;
  byteAt(bytes, headerLength - 1);
  const length = bytes.readUIntBE(HEADER_BYTES, count);
  if (lengthBytes(length).length !== 1 + count) {
    throw new DerError('a length is written with more bytes than it needs');
  }
  return { length, headerLength };
}

function byteAt(bytes: Buffer, at: number): number {
  const byte = bytes[at];
  if (byte === undefined) {
    throw new DerError('an element is cut off');
  }
  return byte;
}

function lengthBytes(length: number): Buffer {
  if (length < LONG_LENGTH) {
    return Buffer.from([length]);
  }
  const count = Math.ceil(length.toString(16).length / 2);
  const bytes = Buffer.alloc(1 + count, LONG_LENGTH + count);
  bytes.writeUIntBE(length, 1, count);
  return bytes;
}
