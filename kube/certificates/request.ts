/**
 * Reads the certificate requests (PKCS#10, RFC 2986) of hosts. Berth approves a request, and Kubernetes signs it. Both must understand the
 * request in the same way. The code of Kubernetes uses the last of several common names, joins several extension requests, and skips text
 * around PEM blocks. Therefore this file accepts only requests that are encoded as agents encode them. To check this, it encodes the
 * content again and compares the result with the request, byte for byte.
 */
import { createPublicKey, verify } from 'node:crypto';

// The part of DER (X.690) that certificate requests need. The reader is strict, so that no other reader can understand the same bytes
// differently. It accepts only tags of one byte, definite lengths in their shortest form, and complete elements.

/** Tags of the universal class of ASN.1. The bit `0x20` marks an element that consists of other elements. */
export const TAGS = {
  boolean: 0x01,
  integer: 0x02,
  bitString: 0x03,
  octetString: 0x04,
  null: 0x05,
  objectIdentifier: 0x06,
  utf8String: 0x0c,
  printableString: 0x13,
  utcTime: 0x17,
  generalizedTime: 0x18,
  sequence: 0x30,
  set: 0x31,
} as const;

interface Element {
  readonly tag: number;
  readonly content: Buffer;
  /** Tag, length and content of the element, as they were received. */
  readonly raw: Buffer;
}

/** Error for bytes that are not DER. */
class DerError extends Error {
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

/** Encodes a SEQUENCE of encoded elements. */
export function sequence(...elements: readonly Buffer[]): Buffer {
  return encode(TAGS.sequence, ...elements);
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

/** Content of a signing request. */
export interface SigningRequest {
  readonly commonName: string;
  readonly organization: string;
  /** DNS names among the subject alternative names. A request with a name that is neither a DNS name nor an IP address is refused. */
  readonly dnsNames: readonly string[];
  /** IP addresses among the subject alternative names. IPv6 addresses have the form of RFC 5952. */
  readonly ipAddresses: readonly string[];
}

/** Error when a request does not have the accepted form. The message names the fault and the accepted form. */
export class InvalidSigningRequestError extends Error {
  override readonly name = 'InvalidSigningRequestError';
}

interface SubjectPart {
  type: Buffer;
  stringTag: number;
  text: string;
}

interface Lists {
  1: [Element];
  2: [Element, Element];
  3: [Element, Element, Element];
  4: [Element, Element, Element, Element];
}

/** The variable parts of a request. They suffice to encode the whole request again, because all its other parts are fixed. */
interface Parts {
  subject: readonly SubjectPart[];
  /** Public key: an uncompressed point on P-256. */
  point: Buffer;
  /** Subject alternative names. Undefined when the request has no extension. */
  names: readonly Element[] | undefined;
  signature: Buffer;
}

/** Limit of a request's length in characters. A host has few addresses, so the requests of agents have about 500 bytes. */
const LENGTH_MAXIMUM = 8_192;
const PEM =
  /^-----BEGIN CERTIFICATE REQUEST-----\n((?:[A-Za-z0-9+/=]+\n)+)-----END CERTIFICATE REQUEST-----\n?$/;

export const COMMON_NAME = identifier('550403');
export const ORGANIZATION = identifier('55040a');
/** Object identifier of extensionRequest (1.2.840.113549.1.9.14), encoded. */
export const EXTENSION_REQUEST = identifier('2a864886f70d01090e');
/** Object identifier of subjectAltName (2.5.29.17), encoded. */
export const SUBJECT_ALTERNATIVE_NAME = identifier('551d11');
/** Algorithm of the public key, ECDSA on P-256: object identifiers 1.2.840.10045.2.1 and 1.2.840.10045.3.1.7. */
const ECDSA_ON_P256 = encode(TAGS.sequence, identifier('2a8648ce3d0201'), identifier('2a8648ce3d030107'));
/** Algorithm of the signature, ECDSA with SHA-256: object identifier 1.2.840.10045.4.3.2. */
export const ECDSA_WITH_SHA256 = encode(TAGS.sequence, identifier('2a8648ce3d040302'));
const VERSION = encode(TAGS.integer, Buffer.from([0]));
const ATTRIBUTES_TAG = 0xa0;
export const NO_UNUSED_BITS = Buffer.from([0]);
/** First byte of an uncompressed point on P-256. Two coordinates of 32 bytes follow. */
const UNCOMPRESSED = 0x04;
const POINT_BYTES = 65;

export const DNS_NAME_TAG = 0x82;
export const IP_ADDRESS_TAG = 0x87;
const OTHER_NAMES: Readonly<Record<number, string>> = { 0x81: 'an e-mail address', 0x86: 'a URI' };
const IPV4_BYTES = 4;
const IPV6_BYTES = 16;
/** First bytes of an IPv6 address that contains an IPv4 address (::ffff:0:0/96). Go writes such an address into certificates as IPv4. */
const IPV4_IN_IPV6 = Buffer.from('00000000000000000000ffff', 'hex');
/** Characters that a subject's name may contain: the characters of a PrintableString (X.680 41.4), even if the name is a UTF8String. */
const PRINTABLE = /^[A-Za-z0-9 '()+,./:=?-]+$/;
const VISIBLE_ASCII = /^[\u0021-\u007e]+$/;

/**
 * Reads the content of a PKCS#10 request. `pem` is exactly one PEM block.
 *
 * @throws InvalidSigningRequestError when the request does not have the accepted form, or when its signature does not match its key
 */
export function readSigningRequest(pem: string): SigningRequest {
  const der = derOf(pem);
  let parts: Parts;
  try {
    parts = readParts(der);
  } catch (error) {
    throw error instanceof DerError ? invalid(`it is not DER: ${error.message}`) : error;
  }
  const signed = signedPart(parts);
  if (!wholeRequest(signed, parts.signature).equals(der)) {
    throw invalid(
      'it does not have the form that agents use: version 1, a subject, an ECDSA key on P-256, a request for extensions, and a signature with SHA-256',
    );
  }
  if (!isSignedWithItsKey(signed, parts)) {
    throw invalid('it is not signed with the private key that belongs to its public key');
  }
  return meaningOf(parts);
}

function derOf(pem: string): Buffer {
  if (pem.length > LENGTH_MAXIMUM) {
    throw invalid(`it is longer than ${LENGTH_MAXIMUM} bytes`);
  }
  const base64 = PEM.exec(pem)?.[1]?.replaceAll('\n', '');
  if (base64 === undefined) {
    throw invalid(
      'it must be exactly one PEM block CERTIFICATE REQUEST, with no other text before, inside or after the block',
    );
  }
  const der = Buffer.from(base64, 'base64');
  if (der.toString('base64') !== base64) {
    throw invalid('its base64 is not canonical');
  }
  return der;
}

function readParts(der: Buffer): Parts {
  const [request] = listOf(readElements(der), 1, 'the request');
  const [signed, , signature] = childrenOf(request, 3, 'the request');
  const [, subject, key, attributes] = childrenOf(signed, 4, 'the part that is signed');
  const [, point] = childrenOf(key, 2, 'the public key');
  return {
    subject: readSubject(subject),
    point: bitsOf(point),
    names: readNames(attributes),
    signature: bitsOf(signature),
  };
}

function readSubject(subject: Element): SubjectPart[] {
  const parts = readElements(subject.content).map(readSubjectPart);
  for (const [type, name] of [
    [COMMON_NAME, 'common name'],
    [ORGANIZATION, 'organization'],
  ] as const) {
    const count = parts.filter((part) => part.type.equals(type)).length;
    if (count !== 1) {
      throw invalid(`the subject must have exactly one ${name}, not ${count}`);
    }
  }
  if (parts.length > 2) {
    throw invalid('the subject must have an organization and a common name, and nothing else');
  }
  return parts;
}

function readSubjectPart(part: Element): SubjectPart {
  const values = readElements(part.content);
  const [value] = values;
  if (value === undefined || values.length > 1) {
    throw invalid(`each part of the subject must have exactly one value, not ${values.length}`);
  }
  const [type, text] = childrenOf(value, 2, 'a part of the subject');
  const isString = text.tag === TAGS.printableString || text.tag === TAGS.utf8String;
  if (!isString || !PRINTABLE.test(text.content.toString('latin1'))) {
    throw invalid('the subject must be a PrintableString or UTF8String with only printable characters');
  }
  return { type: type.raw, stringTag: text.tag, text: text.content.toString('latin1') };
}

/** Reads the subject alternative names. The result is undefined if the request has no extension. */
function readNames(attributes: Element): Element[] | undefined {
  const found = readElements(attributes.content);
  if (found.length === 0) {
    return undefined;
  }
  const [attribute] = listOf(found, 1, 'the list of attributes');
  const [type, values] = childrenOf(attribute, 2, 'an attribute');
  if (!type.raw.equals(EXTENSION_REQUEST)) {
    throw invalid('it must have no attribute other than extensionRequest');
  }
  const [extensions] = childrenOf(values, 1, 'extensionRequest');
  const [extension] = childrenOf(extensions, 1, 'the list of extensions');
  const [id, value] = childrenOf(extension, 2, 'an extension, which must not be critical,');
  if (!id.raw.equals(SUBJECT_ALTERNATIVE_NAME)) {
    throw invalid('it must have no extension other than subjectAltName');
  }
  const [names] = listOf(readElements(value.content), 1, 'subjectAltName');
  const read = readElements(names.content);
  if (read.length === 0) {
    throw invalid('subjectAltName is empty. Leave it out, or add addresses');
  }
  for (const name of read) {
    refuseForeignName(name);
  }
  return read;
}

function refuseForeignName({ tag, content }: Element): void {
  if (tag === DNS_NAME_TAG) {
    if (!VISIBLE_ASCII.test(content.toString('latin1'))) {
      throw invalid('a DNS name has characters that are not visible ASCII');
    }
  } else if (tag !== IP_ADDRESS_TAG) {
    throw invalid(
      `subjectAltName must have only IP addresses and DNS names, not ${OTHER_NAMES[tag] ?? `type ${tag}`}`,
    );
  } else if (content.length !== IPV4_BYTES && content.length !== IPV6_BYTES) {
    throw invalid(`an IP address has ${content.length} bytes, but it must have 4 or 16`);
  } else if (content.length === IPV6_BYTES && content.subarray(0, IPV4_IN_IPV6.length).equals(IPV4_IN_IPV6)) {
    throw invalid('an IPv4 address is written as IPv6: write it with 4 bytes');
  }
}

function signedPart({ subject, point, names }: Parts): Buffer {
  const subjectParts = subject.map(({ type, stringTag, text }) =>
    encode(TAGS.set, encode(TAGS.sequence, type, encode(stringTag, Buffer.from(text, 'latin1')))),
  );
  return encode(
    TAGS.sequence,
    VERSION,
    encode(TAGS.sequence, ...subjectParts),
    publicKeyOf(point),
    encode(ATTRIBUTES_TAG, ...(names === undefined ? [] : [extensionRequest(names)])),
  );
}

function extensionRequest(names: readonly Element[]): Buffer {
  const value = encode(TAGS.sequence, ...names.map(({ tag, content }) => encode(tag, content)));
  const extension = encode(TAGS.sequence, SUBJECT_ALTERNATIVE_NAME, encode(TAGS.octetString, value));
  return encode(TAGS.sequence, EXTENSION_REQUEST, encode(TAGS.set, encode(TAGS.sequence, extension)));
}

function publicKeyOf(point: Buffer): Buffer {
  return encode(TAGS.sequence, ECDSA_ON_P256, encode(TAGS.bitString, NO_UNUSED_BITS, point));
}

function wholeRequest(signed: Buffer, signature: Buffer): Buffer {
  const bits = encode(TAGS.bitString, NO_UNUSED_BITS, signature);
  return encode(TAGS.sequence, signed, ECDSA_WITH_SHA256, bits);
}

function isSignedWithItsKey(signed: Buffer, { point, signature }: Parts): boolean {
  if (point.length !== POINT_BYTES || point[0] !== UNCOMPRESSED) {
    throw invalid('its key must be a point on P-256 that is not compressed');
  }
  try {
    const key = createPublicKey({ key: publicKeyOf(point), format: 'der', type: 'spki' });
    return verify('sha256', signed, key, signature);
  } catch {
    // OpenSSL throws its own error if the point is not on the curve. The request is then refused with the message for a wrong signature.
    return false;
  }
}

function meaningOf({ subject, names = [] }: Parts): SigningRequest {
  const textOf = (wanted: Buffer) => subject.find(({ type }) => type.equals(wanted))?.text ?? '';
  const ofTag = (wanted: number) => names.filter(({ tag }) => tag === wanted).map(({ content }) => content);
  return {
    commonName: textOf(COMMON_NAME),
    organization: textOf(ORGANIZATION),
    dnsNames: ofTag(DNS_NAME_TAG).map((content) => content.toString('latin1')),
    ipAddresses: ofTag(IP_ADDRESS_TAG).map(addressText),
  };
}

function addressText(bytes: Buffer): string {
  if (bytes.length === IPV4_BYTES) {
    return bytes.join('.');
  }
  const groups = bytes.toString('hex').match(/.{4}/g) ?? [];
  // The URL parser formats IPv6 as in RFC 5952, between brackets.
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1);
}

function childrenOf<N extends keyof Lists>(element: Element, count: N, what: string): Lists[N] {
  return listOf(readElements(element.content), count, what);
}

/** Returns the list after a check that it has exactly `count` elements. @throws InvalidSigningRequestError when it has more or fewer */
function listOf<N extends keyof Lists>(found: Element[], count: N, what: string): Lists[N] {
  if (found.length !== count) {
    throw invalid(`${what} must have exactly ${count} part${count === 1 ? '' : 's'}, not ${found.length}`);
  }
  return found as Lists[N];
}

/**
 * Returns a BIT STRING without its first byte, which is the number of unused bits. That byte needs no check here, because the request is
 * later encoded again and compared byte for byte.
 */
function bitsOf(bitString: Element): Buffer {
  return bitString.content.subarray(NO_UNUSED_BITS.length);
}

/** Encodes an OBJECT IDENTIFIER from its content in hexadecimal digits. */
export function identifier(content: string): Buffer {
  return encode(TAGS.objectIdentifier, Buffer.from(content, 'hex'));
}

function invalid(what: string): InvalidSigningRequestError {
  return new InvalidSigningRequestError(what);
}
