/** Making keys, certificates and signing requests. All are PEM text; keys are PKCS#8. */
import {
  createPrivateKey,
  createPublicKey,
  generateKeyPair,
  type KeyObject,
  webcrypto,
  X509Certificate,
} from 'node:crypto';
import { promisify } from 'node:util';
import type { Extension, JsonGeneralNames, JsonName } from '@peculiar/x509';

export type KeyAlgorithm = 'ECDSA' | 'RSA';

/** A certificate with its key. */
export interface Certificate {
  /** PEM, with the chain. */
  certificate: string;
  /** PEM. */
  key: string;
}

export interface Key {
  algorithm: KeyAlgorithm;
  /** The private key. */
  pem: string;
}

/** Whose certificate it is, and for which addresses. */
export interface Subject {
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
/** Certificates are valid a little before they are made, for readers whose clocks are behind. */
const CLOCK_SKEW_MILLISECONDS = 5 * 60 * 1000;
/** What browsers and Go accept everywhere. */
const RSA_BITS = 2048;
const SERVER_USAGE = '1.3.6.1.5.5.7.3.1';
const ECDSA = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;
const RSA = { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' } as const;

const generate = promisify(generateKeyPair);

/** Loaded at first use: it costs 22 MB of memory, which a process that only reads certificates can do without. */
async function library() {
  await import('reflect-metadata');
  const x509 = await import('@peculiar/x509');
  x509.cryptoProvider.set(webcrypto as unknown as Parameters<typeof x509.cryptoProvider.set>[0]);
  return x509;
}

/** A new key: ECDSA on P-256, or RSA of 2048 bits. */
export async function createKey(algorithm: KeyAlgorithm = 'ECDSA'): Promise<Key> {
  const { privateKey } =
    algorithm === 'ECDSA'
      ? await generate('ec', { namedCurve: 'P-256' })
      : await generate('rsa', { modulusLength: RSA_BITS });
  return { algorithm, pem: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() };
}

/** Reads a private key in any PEM form. @throws Error when it is neither RSA nor on P-256. */
export function readKey(pem: string): Key {
  const key = createPrivateKey(pem);
  const curve = key.asymmetricKeyDetails?.namedCurve;
  if (key.asymmetricKeyType !== 'rsa' && curve !== 'prime256v1') {
    throw new Error(`neither an RSA key nor one on P-256: ${key.asymmetricKeyType ?? ''} ${curve ?? ''}`);
  }
  return {
    algorithm: key.asymmetricKeyType === 'rsa' ? 'RSA' : 'ECDSA',
    pem: key.export({ type: 'pkcs8', format: 'pem' }).toString(),
  };
}

/** A PKCS#10 request; certificaterequest.ts reads it. */
export async function createSigningRequest(request: Subject & { key: Key }): Promise<string> {
  const x509 = await library();
  const { key } = request;
  const made = await x509.Pkcs10CertificateRequestGenerator.create({
    name: nameOf(request),
    keys: pairOf(key),
    signingAlgorithm: algorithmOf(key),
    extensions: await namesExtension(request),
  });
  return made.toString('pem');
}

/** A certificate that vouches for itself, to serve with. */
export async function selfSigned(o: Subject & { key: Key; days: number }): Promise<string> {
  const x509 = await library();
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    name: nameOf(o),
    keys: pairOf(o.key),
    signingAlgorithm: algorithmOf(o.key),
    ...period(o.days),
    extensions: [...(await servingExtensions()), ...(await namesExtension(o))],
  });
  return certificate.toString('pem');
}

/** When the first certificate of a chain is valid. */
export function validityOf(pem: string): Validity {
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

/** As a list of parts, so that nothing in a name is read as syntax. */
function nameOf(subject: Subject): JsonName {
  const organizations = (subject.organizations ?? []).map((organization) => ({ O: [organization] }));
  return [...organizations, { CN: [subject.commonName] }];
}

async function namesExtension(subject: Subject): Promise<Extension[]> {
  const names: JsonGeneralNames = [
    ...(subject.dnsNames ?? []).map((value) => ({ type: 'dns' as const, value })),
    ...(subject.ipAddresses ?? []).map((value) => ({ type: 'ip' as const, value })),
  ];
  const x509 = await library();
  return names.length === 0 ? [] : [new x509.SubjectAlternativeNameExtension(names)];
}

async function servingExtensions(): Promise<Extension[]> {
  const x509 = await library();
  return [
    new x509.BasicConstraintsExtension(false, undefined, true),
    new x509.KeyUsagesExtension(
      x509.KeyUsageFlags.digitalSignature | x509.KeyUsageFlags.keyEncipherment,
      true,
    ),
    new x509.ExtendedKeyUsageExtension([SERVER_USAGE]),
  ];
}

function algorithmOf(key: Key): typeof ECDSA | typeof RSA {
  return key.algorithm === 'ECDSA' ? ECDSA : RSA;
}

function pairOf(key: Key): webcrypto.CryptoKeyPair {
  const privateKey = createPrivateKey(key.pem);
  const convert = (half: KeyObject, usage: 'sign' | 'verify') =>
    half.toCryptoKey(algorithmOf(key), true, [usage]);
  return {
    privateKey: convert(privateKey, 'sign'),
    publicKey: convert(createPublicKey(privateKey), 'verify'),
  };
}
