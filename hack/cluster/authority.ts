/** Certificate authorities of a cluster, a registry or a stranger. The product itself signs only its own requests and certificates. */
import { createHash, X509Certificate } from 'node:crypto';
import {
  BASIC_CONSTRAINTS,
  bits,
  createKey,
  DIGITAL_SIGNATURE,
  encodeName,
  extension,
  type PrivateKey,
  KEY_USAGE,
  namesExtension,
  publicKeyOf,
  servingExtensions,
  signCertificate,
  type CertificateSubject,
  TRUE,
  type USAGES,
  type Validity,
} from '../../kube/certificates/certificate.ts';
import { encode, identifier, readElements, sequence, TAGS } from '../../kube/certificates/request.ts';

export interface Authority {
  key: PrivateKey;
  /** Certificate of the authority as PEM. */
  certificate: string;
}

export interface Issued extends CertificateSubject {
  /** Key of the certificate's owner. */
  key: PrivateKey;
  /** Validity of the certificate. By default it begins now and lasts a year. Times are cut to whole seconds. */
  validity?: Validity;
  /** Usages of the certificate. By default it has both. */
  usages?: readonly (keyof typeof USAGES)[];
}

/** Default validity. No cluster for a demo, tests or benchmarks is kept longer. */
const VALIDITY_MILLISECONDS = 365 * 24 * 60 * 60 * 1000;
/** The validity begins this number of milliseconds in the past, because clocks of other machines can be behind. */
const CLOCK_SKEW_MILLISECONDS = 5 * 60 * 1000;
/** Extensions that name the key of the certificate's owner, and that of its issuer. Authorities with the same name differ by it. */
const SUBJECT_KEY_IDENTIFIER = identifier('551d0e');
const AUTHORITY_KEY_IDENTIFIER = identifier('551d23');
const KEY_IDENTIFIER_TAG = 0x80;
/** Bits of the key usage of authorities. */
const KEY_CERT_SIGN = 0x04;
const CRL_SIGN = 0x02;

type Element = ReturnType<typeof readElements>[number];

/** Creates a certificate authority on P-256. */
export async function createAuthority(commonName: string): Promise<Authority> {
  const key = await createKey();
  const name = encodeName({ commonName });
  const publicKey = publicKeyOf(key);
  const extensions = [
    extension(BASIC_CONSTRAINTS, sequence(encode(TAGS.boolean, TRUE)), true),
    extension(KEY_USAGE, bits(KEY_CERT_SIGN | CRL_SIGN | DIGITAL_SIGNATURE), true),
    extension(SUBJECT_KEY_IDENTIFIER, encode(TAGS.octetString, keyIdentifier(key))),
  ];
  const content = { subject: name, issuer: name, publicKey, validity: lasting(), extensions };
  const certificate = await signCertificate(content, key);
  return { key, certificate };
}

/** Returns a serving certificate as PEM for a certificate request in PEM, with all its names. The authority checks nothing. */
export async function signServing(authority: Authority, request: string): Promise<string> {
  const der = Buffer.from(request.replaceAll(/-----.*-----|\s/g, ''), 'base64');
  const [content] = childrenOf(readElements(der)[0]);
  const [, subject, publicKey, attributes] = childrenOf(content);
  const [, values] = childrenOf(childrenOf(attributes)[0]);
  return await signCertificate(
    {
      subject: subject?.raw ?? Buffer.alloc(0),
      issuer: subjectIn(authority.certificate),
      publicKey: publicKey?.raw ?? Buffer.alloc(0),
      validity: lasting(),
      extensions: [
        ...childrenOf(childrenOf(values)[0]).map(({ raw }) => raw),
        ...servingExtensions(['server']),
        issuerExtension(authority),
      ],
    },
    authority.key,
  );
}

/** Returns a certificate as PEM, signed by the authority. */
export async function issue(authority: Authority, o: Issued): Promise<string> {
  return await signCertificate(
    {
      subject: encodeName(o),
      issuer: subjectIn(authority.certificate),
      publicKey: publicKeyOf(o.key),
      validity: o.validity ?? lasting(),
      extensions: [
        ...servingExtensions(o.usages ?? ['server', 'client']),
        issuerExtension(authority),
        ...namesExtension(o),
      ],
    },
    authority.key,
  );
}

/** Returns the encoded subject of a certificate: after version, serial number, algorithm, issuer and validity. */
function subjectIn(certificate: string): Buffer {
  const [content] = childrenOf(readElements(new X509Certificate(certificate).raw)[0]);
  return childrenOf(content)[5]?.raw ?? Buffer.alloc(0);
}

function issuerExtension({ key }: Authority): Buffer {
  return extension(AUTHORITY_KEY_IDENTIFIER, sequence(encode(KEY_IDENTIFIER_TAG, keyIdentifier(key))));
}

function keyIdentifier(key: PrivateKey): Buffer {
  return createHash('sha1').update(publicKeyOf(key)).digest();
}

function childrenOf(element: Element | undefined): Element[] {
  return element === undefined ? [] : readElements(element.content);
}

function lasting(): Validity {
  const now = Date.now();
  return {
    notBefore: new Date(now - CLOCK_SKEW_MILLISECONDS),
    notAfter: new Date(now + VALIDITY_MILLISECONDS),
  };
}
