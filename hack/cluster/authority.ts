/** Certificate authorities of a cluster, a registry or a stranger. The product itself signs only its own requests and certificates. */
import { createPrivateKey, createPublicKey, type KeyObject, webcrypto } from 'node:crypto';
import type { Extension } from '@peculiar/x509';
import { createKey, type Key, type Subject, type Validity } from '../../kube/certificates/certificate.ts';

export interface Authority {
  key: Key;
  /** Certificate of the authority as PEM. */
  certificate: string;
}

export interface Issued extends Subject {
  /** Key of the certificate's owner. */
  key: Key;
  /** Validity of the certificate. By default it begins now and lasts a year. Times are cut to whole seconds. */
  validity?: Validity;
  /** Usages of the certificate. By default it has both. */
  usages?: readonly (keyof typeof USAGES)[];
}

/** Default validity. No cluster for a demo, tests or benchmarks is kept longer. */
const VALIDITY_MILLISECONDS = 365 * 24 * 60 * 60 * 1000;
/** The validity begins this number of milliseconds in the past, because clocks of other machines can be behind. */
const CLOCK_SKEW_MILLISECONDS = 5 * 60 * 1000;
const USAGES = { server: '1.3.6.1.5.5.7.3.1', client: '1.3.6.1.5.5.7.3.2' };

/** Loads the X.509 library at first use, because most test files import the harness but make no certificate. */
async function library() {
  await import('reflect-metadata');
  const x509 = await import('@peculiar/x509');
  x509.cryptoProvider.set(webcrypto as unknown as Parameters<typeof x509.cryptoProvider.set>[0]);
  return x509;
}

/** Creates a certificate authority on P-256. */
export async function createAuthority(commonName: string): Promise<Authority> {
  const x509 = await library();
  const key = await createKey();
  const keys = pairOf(key);
  const { keyCertSign, cRLSign, digitalSignature } = x509.KeyUsageFlags;
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    name: [{ CN: [commonName] }],
    keys,
    signingAlgorithm: algorithmOf(key),
    ...lasting(),
    extensions: [
      new x509.BasicConstraintsExtension(true, undefined, true),
      new x509.KeyUsagesExtension(keyCertSign | cRLSign | digitalSignature, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  return { key, certificate: certificate.toString('pem') };
}

/** Returns a serving certificate as PEM for a certificate request in PEM, with all its names. The authority checks nothing. */
export async function signServing(authority: Authority, request: string): Promise<string> {
  const x509 = await library();
  const { publicKey, subjectName, extensions } = new x509.Pkcs10CertificateRequest(request);
  const certificate = await x509.X509CertificateGenerator.create({
    subject: subjectName,
    issuer: new x509.X509Certificate(authority.certificate).subjectName,
    publicKey,
    signingKey: pairOf(authority.key).privateKey,
    signingAlgorithm: algorithmOf(authority.key),
    ...lasting(),
    extensions: [...extensions, new x509.ExtendedKeyUsageExtension([USAGES.server])],
  });
  return certificate.toString('pem');
}

/** Returns a certificate as PEM, signed by the authority. */
export async function issue(authority: Authority, o: Issued): Promise<string> {
  const x509 = await library();
  const issuer = new x509.X509Certificate(authority.certificate);
  const { organizations = [], usages = ['server', 'client'] } = o;
  const { digitalSignature, keyEncipherment } = x509.KeyUsageFlags;
  const certificate = await x509.X509CertificateGenerator.create({
    subject: [...organizations.map((name) => ({ O: [name] })), { CN: [o.commonName] }],
    issuer: issuer.subjectName,
    publicKey: pairOf(o.key).publicKey,
    signingKey: pairOf(authority.key).privateKey,
    signingAlgorithm: algorithmOf(authority.key),
    ...(o.validity ?? lasting()),
    extensions: [
      new x509.BasicConstraintsExtension(false, undefined, true),
      new x509.KeyUsagesExtension(digitalSignature | keyEncipherment, true),
      new x509.ExtendedKeyUsageExtension(usages.map((usage) => USAGES[usage])),
      await x509.AuthorityKeyIdentifierExtension.create(issuer),
      ...(await names(o)),
    ],
  });
  return certificate.toString('pem');
}

async function names({ dnsNames = [], ipAddresses = [] }: Subject): Promise<Extension[]> {
  const all = [
    ...dnsNames.map((value) => ({ type: 'dns' as const, value })),
    ...ipAddresses.map((value) => ({ type: 'ip' as const, value })),
  ];
  const x509 = await library();
  return all.length === 0 ? [] : [new x509.SubjectAlternativeNameExtension(all)];
}

function lasting(): Validity {
  const now = Date.now();
  return {
    notBefore: new Date(now - CLOCK_SKEW_MILLISECONDS),
    notAfter: new Date(now + VALIDITY_MILLISECONDS),
  };
}

function algorithmOf({ algorithm }: Key) {
  return algorithm === 'ECDSA'
    ? { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' }
    : { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' };
}

function pairOf(key: Key): webcrypto.CryptoKeyPair {
  const privateKey = createPrivateKey(key.pem);
  const half = (of: KeyObject, usage: 'sign' | 'verify') => of.toCryptoKey(algorithmOf(key), true, [usage]);
  return { privateKey: half(privateKey, 'sign'), publicKey: half(createPublicKey(privateKey), 'verify') };
}
