/** Creates keys, certificates and signing requests as PEM text. Keys have the format PKCS#8. */
import {
  createPrivateKey,
  createPublicKey,
  generateKeyPair,
  randomBytes,
  sign,
  X509Certificate,
} from 'node:crypto';
import { isIP } from 'node:net';
import { promisify } from 'node:util';
import {
  COMMON_NAME,
  DNS_NAME_TAG,
  ECDSA_WITH_SHA256,
  encode,
  EXTENSION_REQUEST,
  identifier,
  IP_ADDRESS_TAG,
  NO_UNUSED_BITS,
  ORGANIZATION,
  sequence,
  SUBJECT_ALTERNATIVE_NAME,
  TAGS,
} from './request.ts';

export type KeyAlgorithm = 'ECDSA' | 'RSA';

/** Certificate with its key. */
export interface Certificate {
  /** Certificate and its chain as PEM. */
  certificate: string;
  /** Private key as PEM. */
  key: string;
}

export interface PrivateKey {
  algorithm: KeyAlgorithm;
  /** Private key as PEM. */
  pem: string;
}

/** Names and addresses for which a certificate is valid. */
export interface CertificateSubject {
  commonName: string;
  organizations?: readonly string[];
  dnsNames?: readonly string[];
  ipAddresses?: readonly string[];
}

export interface Validity {
  notBefore: Date;
  notAfter: Date;
}

const DAY_MILLISECONDS = 24 * 60 * 60 * 1000;
/**
 * The validity of a certificate begins this number of milliseconds before the certificate is created. Otherwise, a client with a slow clock
 * would refuse a new certificate.
 */
const CLOCK_SKEW_MILLISECONDS = 5 * 60 * 1000;
/** Length of RSA keys in bits. All browsers and Go accept this length. */
const RSA_BITS = 2048;
/** Versions are counted from 0: requests have version 1, certificates 3. */
const REQUEST_VERSION = 0;
const CERTIFICATE_VERSION = 2;
/** Length of a serial number. With so many random bytes, no two certificates have the same number. */
const SERIAL_BYTES = 16;

/** Tags of fields that are numbered in the definition of their structure: the first field, and extensions. */
const FIRST_TAG = 0xa0;
const EXTENSIONS_TAG = 0xa3;
export const TRUE = Buffer.from([0xff]);

/** Extensions (2.5.29.…). */
export const KEY_USAGE = identifier('551d0f');
export const BASIC_CONSTRAINTS = identifier('551d13');
const EXTENDED_KEY_USAGE = identifier('551d25');
/** Bits of the key usage. */
export const DIGITAL_SIGNATURE = 0x80;
const KEY_ENCIPHERMENT = 0x20;
/** Extended key usages: serverAuth (1.3.6.1.5.5.7.3.1) and clientAuth (1.3.6.1.5.5.7.3.2). */
export const USAGES = {
  server: identifier('2b06010505070301'),
  client: identifier('2b06010505070302'),
} as const;
/** Algorithms of signatures: ECDSA with SHA-256, and RSA with SHA-256 (1.2.840.113549.1.1.11, with the parameter NULL). */
const SIGNATURES: Readonly<Record<KeyAlgorithm, Buffer>> = {
  ECDSA: ECDSA_WITH_SHA256,
  RSA: sequence(identifier('2a864886f70d01010b'), encode(TAGS.null)),
};

const generate = promisify(generateKeyPair);

/** Creates a key: ECDSA on P-256, or RSA of 2048 bits. */
export async function createKey(algorithm: KeyAlgorithm = 'ECDSA'): Promise<PrivateKey> {
  const { privateKey } =
    algorithm === 'ECDSA'
      ? await generate('ec', { namedCurve: 'P-256' })
      : await generate('rsa', { modulusLength: RSA_BITS });
  return { algorithm, pem: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() };
}

/** Reads a private key in any PEM form. @throws Error when the key is neither an RSA key nor an ECDSA key on P-256. */
export function readKey(pem: string): PrivateKey {
  const key = createPrivateKey(pem);
  const curve = key.asymmetricKeyDetails?.namedCurve;
  if (key.asymmetricKeyType !== 'rsa' && curve !== 'prime256v1') {
    throw new Error(
      `the key is neither an RSA key nor an ECDSA key on P-256: ${key.asymmetricKeyType ?? ''} ${curve ?? ''}`,
    );
  }
  return {
    algorithm: key.asymmetricKeyType === 'rsa' ? 'RSA' : 'ECDSA',
    pem: key.export({ type: 'pkcs8', format: 'pem' }).toString(),
  };
}

/** Creates a PKCS#10 request as PEM, in the form that request.ts accepts. */
export async function createSigningRequest(
  request: CertificateSubject & { key: PrivateKey },
): Promise<string> {
  const names = namesExtension(request);
  const attributes =
    names.length === 0 ? [] : [sequence(EXTENSION_REQUEST, encode(TAGS.set, sequence(...names)))];
  const content = sequence(
    encode(TAGS.integer, Buffer.from([REQUEST_VERSION])),
    encodeName(request),
    publicKeyOf(request.key),
    encode(FIRST_TAG, ...attributes),
  );
  return pemOf('CERTIFICATE REQUEST', await signed(content, request.key));
}

/** Creates a self-signed certificate for a server. */
export async function selfSigned(o: CertificateSubject & { key: PrivateKey; days: number }): Promise<string> {
  const name = encodeName(o);
  return await signCertificate(
    {
      subject: name,
      issuer: name,
      publicKey: publicKeyOf(o.key),
      validity: period(o.days),
      extensions: [...servingExtensions(['server']), ...namesExtension(o)],
    },
    o.key,
  );
}

/** Content of a certificate. Names, the public key and extensions are encoded. */
export interface CertificateContent {
  subject: Buffer;
  issuer: Buffer;
  publicKey: Buffer;
  validity: Validity;
  extensions: readonly Buffer[];
}

/** Returns a certificate as PEM, signed with the key of its issuer. */
export async function signCertificate(content: CertificateContent, key: PrivateKey): Promise<string> {
  const { subject, issuer, publicKey, validity, extensions } = content;
  const serial = randomBytes(SERIAL_BYTES);
  // The number is positive, and its first byte is not zero.
  serial[0] = ((serial[0] ?? 0) & 0x3f) | 0x40;
  const toSign = sequence(
    encode(FIRST_TAG, encode(TAGS.integer, Buffer.from([CERTIFICATE_VERSION]))),
    encode(TAGS.integer, serial),
    SIGNATURES[key.algorithm],
    issuer,
    sequence(encodeTime(validity.notBefore), encodeTime(validity.notAfter)),
    subject,
    publicKey,
    encode(EXTENSIONS_TAG, sequence(...extensions)),
  );
  return pemOf('CERTIFICATE', await signed(toSign, key));
}

/** Reads the validity of the first certificate of a chain. */
export function parseValidity(pem: string): Validity {
  const certificate = new X509Certificate(pem);
  return { notBefore: new Date(certificate.validFrom), notAfter: new Date(certificate.validTo) };
}

function period(days: number): Validity {
  const now = Date.now();
  return {
    notBefore: new Date(now - CLOCK_SKEW_MILLISECONDS),
    notAfter: new Date(now + days * DAY_MILLISECONDS),
  };
}

/** Encodes the subject's name: its organizations, then its common name. */
export function encodeName({ organizations = [], commonName }: CertificateSubject): Buffer {
  const part = (type: Buffer, text: string): Buffer =>
    encode(TAGS.set, sequence(type, encode(TAGS.utf8String, Buffer.from(text))));
  return sequence(...organizations.map((text) => part(ORGANIZATION, text)), part(COMMON_NAME, commonName));
}

/** Encodes the extension with the DNS names and IP addresses; an empty list if there are none. */
export function namesExtension({ dnsNames = [], ipAddresses = [] }: CertificateSubject): Buffer[] {
  const names = [
    ...dnsNames.map((name) => encode(DNS_NAME_TAG, Buffer.from(name))),
    ...ipAddresses.map((address) => encode(IP_ADDRESS_TAG, addressBytes(address))),
  ];
  return names.length === 0 ? [] : [extension(SUBJECT_ALTERNATIVE_NAME, sequence(...names))];
}

/** Encodes the extensions of a certificate that serves, or is shown by clients, and signs no others. */
export function servingExtensions(usages: readonly (keyof typeof USAGES)[]): Buffer[] {
  return [
    extension(BASIC_CONSTRAINTS, sequence(), true),
    extension(KEY_USAGE, bits(DIGITAL_SIGNATURE | KEY_ENCIPHERMENT), true),
    extension(EXTENDED_KEY_USAGE, sequence(...usages.map((usage) => USAGES[usage]))),
  ];
}

/** Encodes the public half of a key (SubjectPublicKeyInfo). */
export function publicKeyOf(key: PrivateKey): Buffer {
  return createPublicKey(key.pem).export({ type: 'spki', format: 'der' });
}

/** Encodes an extension of a certificate. */
export function extension(type: Buffer, value: Buffer, isCritical = false): Buffer {
  const critical = isCritical ? [encode(TAGS.boolean, TRUE)] : [];
  return sequence(type, ...critical, encode(TAGS.octetString, value));
}

/** Encodes the bits of one byte, the highest first. DER leaves out zeros at the end. */
export function bits(byte: number): Buffer {
  const unused = Math.log2(byte & -byte);
  return encode(TAGS.bitString, Buffer.from([unused, byte]));
}

/** Encodes a time in whole seconds, with two digits of the year until 2049 (RFC 5280 4.1.2.5). */
function encodeTime(time: Date): Buffer {
  const digits = `${time.toISOString().slice(0, 19).replaceAll(/[-T:]/g, '')}Z`;
  return time.getUTCFullYear() < 2050
    ? encode(TAGS.utcTime, Buffer.from(digits.slice(2)))
    : encode(TAGS.generalizedTime, Buffer.from(digits));
}

/** Returns the bytes of an IP address: 4 or 16. @throws Error when it is no address. */
function addressBytes(address: string): Buffer {
  const family = isIP(address);
  if (family === 0) {
    throw new Error(`${JSON.stringify(address)} is no IP address`);
  }
  if (family === 4) {
    return Buffer.from(address.split('.').map(Number));
  }
  // The URL parser gives the form of RFC 5952, between brackets and without a part in decimal digits.
  const [head = '', tail = ''] = new URL(`http://[${address}]`).hostname.slice(1, -1).split('::');
  const [first, last] = [head, tail].map((part) => part.split(':').filter(Boolean)) as [string[], string[]];
  const zeros = Array.from({ length: 8 - first.length - last.length }, () => '0');
  return Buffer.from([...first, ...zeros, ...last].map((group) => group.padStart(4, '0')).join(''), 'hex');
}

/** Returns the content with its signature. */
async function signed(content: Buffer, key: PrivateKey): Promise<Buffer> {
  const signature = await promisify<string, Buffer, string, Buffer>(sign)('sha256', content, key.pem);
  return sequence(content, SIGNATURES[key.algorithm], encode(TAGS.bitString, NO_UNUSED_BITS, signature));
}

function pemOf(label: string, der: Buffer): string {
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join('\n')}\n-----END ${label}-----`;
}
