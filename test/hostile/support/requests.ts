/** Certificate requests as nobody's library makes them: any parts, well signed. */
import { createPrivateKey, createPublicKey, sign } from 'node:crypto';
import { createKey, type Key } from '../../../kube/certificates/certificate.ts';
import { encode, TAGS } from '../../../kube/certificates/der.ts';

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
  /** Relative distinguished names; those of {@link nodeSubject} when absent. */
  subject?: readonly Buffer[];
  attributes?: readonly Buffer[];
  version?: number;
  /** After the last part that is signed. */
  trailing?: readonly Buffer[];
}

/** One value of a subject, without the set around it. */
export function value(type: string, text: string, tag: number = TAGS.utf8String): Buffer {
  return encode(TAGS.sequence, oid(type), encode(tag, Buffer.from(text)));
}

/** A relative distinguished name of these values. */
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

/** An IPv4 address. */
export function ip(address: string): Buffer {
  return rawIP(Buffer.from(address.split('.').map(Number)));
}

export function rawIP(bytes: Buffer): Buffer {
  return encode(0x87, bytes);
}

/** An IPv4 address in 16 bytes. */
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

/** The extension subjectAltName. */
export function names(...found: readonly Buffer[]): Buffer {
  return extension(OIDS.subjectAltName, encode(TAGS.sequence, ...found));
}

export function extension(type: string, content: Buffer, ...critical: readonly Buffer[]): Buffer {
  return encode(TAGS.sequence, oid(type), ...critical, encode(TAGS.octetString, content));
}

/** An attribute that asks for extensions. */
export function extensionRequest(...extensions: readonly Buffer[]): Buffer {
  return attribute(OIDS.extensionRequest, encode(TAGS.sequence, ...extensions));
}

export function attribute(type: string, ...values: readonly Buffer[]): Buffer {
  return encode(TAGS.sequence, oid(type), encode(TAGS.set, ...values));
}

/** The DER of a request with these parts, signed with a new key. */
export async function forge(forgery: Forgery): Promise<Buffer> {
  const key = await createKey();
  return signedWith(key, signedPart(key, forgery));
}

/** A request whose signed part is whatever it is. */
export function signedWith(key: Key, signed: Buffer): Buffer {
  const signature = sign('sha256', signed, createPrivateKey(key.pem));
  return encode(TAGS.sequence, signed, ECDSA_WITH_SHA256, encode(TAGS.bitString, NO_UNUSED_BITS, signature));
}

export function signedPart(
  key: Key,
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
