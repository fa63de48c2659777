/** Creates keys, certificates and signing requests as PEM text. Keys have the format PKCS#8. */
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

/** Certificate with its key. */
export interface Certificate {
  /** Certificate and its chain as PEM. */
  certificate: string;
  /** Private key as PEM. */
  key: string;
}

export interface Key {
  algorithm: KeyAlgorithm;
  /** Private key as PEM. */
  pem: string;
}

/** Names and addresses for which a certificate is valid. */
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
/**
 * The validity of a certificate begins this number of milliseconds before the certificate is created. Otherwise, a client with a slow clock
 * would refuse a new certificate.
 */
const CLOCK_SKEW_MILLISECONDS = 5 * 60 * 1000;
/** Length of RSA keys in bits. All browsers and Go accept this length. */
const RSA_BITS = 2048;
const SERVER_USAGE = '1.3.6.1.5.5.7.3.1';
const ECDSA = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;
const RSA = { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' } as const;

const generate = promisify(generateKeyPair);

/**
 * Loads the X.509 library when it is first needed. The library takes 22 MB of memory, and processes that only read certificates do not need
 * it.
 */
async function library() {
  await import('reflect-metadata');
  const x509 = await import('@peculiar/x509');
  x509.cryptoProvider.set(webcrypto as unknown as Parameters<typeof x509.cryptoProvider.set>[0]);
  return x509;
}

/** Creates a key: ECDSA on P-256, or RSA of 2048 bits. */
export async function createKey(algorithm: KeyAlgorithm = 'ECDSA'): Promise<Key> {
  const { privateKey } =
    algorithm === 'ECDSA'
      ? await generate('ec', { namedCurve: 'P-256' })
      : await generate('rsa', { modulusLength: RSA_BITS });
  return { algorithm, pem: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() };
}

/** Reads a private key in any PEM form. @throws Error when the key is neither an RSA key nor an ECDSA key on P-256. */
export function readKey(pem: string): Key {
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

/** Creates a self-signed certificate for a server. */
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

/** Reads the validity of the first certificate of a chain. */
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

/**
 * Returns the subject's name as a list of parts. If the name were a single text, the library would read some of its characters as syntax.
 */
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
