/** Certificate requests that no library makes: with any parts, and a valid signature. */
import { createPrivateKey, createPublicKey, sign } from 'node:crypto';
import { createKey, type PrivateKey } from '../../../kube/certificates/certificate.ts';
import { encode, TAGS } from '../../../kube/certificates/request.ts';

export const OIDS = {
  commonName: '550403',
  organization: '55040a',
  organizationalUnit: '55040b',
  extensionRequest: '2a864886f70d01090e',
  challengePassword: '2a864886f70d010907',
  subjectAltName: '551d11',
  basicConstraints: '551d13',
} as const;

const ECDSA_WITH_SHA256 = encode(TAGS.sequence, oid('2a8648ce3d040302'));
const NO_UNUSED_BITS = Buffer.from([0]);

export interface Forgery {
  /**
   * Relative distinguished names. Those of {@link nodeSubject} if absent.
   */
  subject?: readonly Buffer[];
  attributes?: readonly Buffer[];
  version?: number;
  /** Parts that follow the last signed part. */
  trailing?: readonly Buffer[];
}

/** Returns one value of a subject, without the set around it. */
export function value(type: string, text: string, tag: number = TAGS.utf8String): Buffer {
  return encode(TAGS.sequence, oid(type), encode(tag, Buffer.from(text)));
}

/** Returns a relative distinguished name with these values. */
export function rdn(...values: readonly Buffer[]): Buffer {
  return encode(TAGS.set, ...values);
}

export function organization(text = 'system:nodes'): Buffer {
  return rdn(value(OIDS.organization, text));
}

export function commonName(name: string): Buffer {
  return rdn(value(OIDS.commonName, `system:node:${name}`));
}

export function dns(name: string): Buffer {
  return encode(0x82, Buffer.from(name));
}

/** Returns the encoded name of an IPv4 address. */
export function ip(address: string): Buffer {
  return rawIP(Buffer.from(address.split('.').map(Number)));
}

export function rawIP(bytes: Buffer): Buffer {
  return encode(0x87, bytes);
}

/** Returns the encoded name of an IPv4 address in 16 bytes. */
export function mapped(address: string): Buffer {
  const prefix = Buffer.from('00000000000000000000ffff', 'hex');
  return rawIP(Buffer.concat([prefix, Buffer.from(address.split('.').map(Number))]));
}

export function email(address: string): Buffer {
  return encode(0x81, Buffer.from(address));
}

export function uri(text: string): Buffer {
  return encode(0x86, Buffer.from(text));
}

/** Returns the extension subjectAltName. */
export function names(...found: readonly Buffer[]): Buffer {
  return extension(OIDS.subjectAltName, encode(TAGS.sequence, ...found));
}

export function extension(type: string, content: Buffer, ...critical: readonly Buffer[]): Buffer {
  return encode(TAGS.sequence, oid(type), ...critical, encode(TAGS.octetString, content));
}

/** Returns an attribute that asks for extensions. */
export function extensionRequest(...extensions: readonly Buffer[]): Buffer {
  return attribute(OIDS.extensionRequest, encode(TAGS.sequence, ...extensions));
}

export function attribute(type: string, ...values: readonly Buffer[]): Buffer {
  return encode(TAGS.sequence, oid(type), encode(TAGS.set, ...values));
}

/** Returns the DER of a request with these parts, signed with a new key. */
export async function forge(forgery: Forgery): Promise<Buffer> {
  const key = await createKey();
  return signedWith(key, signedPart(key, forgery));
}

/** Returns the DER of a request whose signed part has any content. */
export function signedWith(key: PrivateKey, signed: Buffer): Buffer {
  const signature = sign('sha256', signed, createPrivateKey(key.pem));
  return encode(TAGS.sequence, signed, ECDSA_WITH_SHA256, encode(TAGS.bitString, NO_UNUSED_BITS, signature));
}

export function signedPart(
  key: PrivateKey,
  { subject = [], attributes = [], version = 0, trailing = [] }: Forgery,
): Buffer {
  const publicKey = createPublicKey(key.pem).export({ type: 'spki', format: 'der' });
  return encode(
    TAGS.sequence,
    encode(TAGS.integer, Buffer.from([version])),
    encode(TAGS.sequence, ...subject),
    publicKey,
    encode(0xa0, ...attributes),
    ...trailing,
  );
}

export function pemOf(der: Uint8Array): string {
  const lines =
    Buffer.from(der)
      .toString('base64')
      .match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE REQUEST-----\n${lines.join('\n')}\n-----END CERTIFICATE REQUEST-----\n`;
}

function oid(content: string): Buffer {
  return encode(TAGS.objectIdentifier, Buffer.from(content, 'hex'));
}
