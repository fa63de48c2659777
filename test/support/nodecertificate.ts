/** Certificates of nodes whose life is as short as a test wants it: those of the product begin 5 minutes ago, and API servers sign none below 10. */
import 'reflect-metadata';
import { createPrivateKey, createPublicKey, type KeyObject, webcrypto } from 'node:crypto';
import * as x509 from '@peculiar/x509';
import type { Authority, Key, Validity } from '../../kube/certificates.ts';

x509.cryptoProvider.set(webcrypto as unknown as Parameters<typeof x509.cryptoProvider.set>[0]);

const ECDSA = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
const USAGES = { client: '1.3.6.1.5.5.7.3.2', serving: '1.3.6.1.5.5.7.3.1' };

export interface NodeCertificate extends Validity {
  /** On P-256, as the authority's. */
  key: Key;
  nodeName: string;
  kind: 'client' | 'serving';
  /** Of a serving certificate. */
  ipAddress: string;
}

/** PEM. The times are cut to whole seconds. */
export async function issueForNode(authority: Authority, o: NodeCertificate): Promise<string> {
  const certificate = await x509.X509CertificateGenerator.create({
    subject: [{ O: ['system:nodes'] }, { CN: [`system:node:${o.nodeName}`] }],
    issuer: new x509.X509Certificate(authority.certificate).subjectName,
    publicKey: half(createPublicKey(o.key.pem), 'verify'),
    signingKey: half(createPrivateKey(authority.key.pem), 'sign'),
    signingAlgorithm: ECDSA,
    notBefore: o.notBefore,
    notAfter: o.notAfter,
    extensions: [
      new x509.ExtendedKeyUsageExtension([USAGES[o.kind]]),
      ...(o.kind === 'serving'
        ? [new x509.SubjectAlternativeNameExtension([{ type: 'ip', value: o.ipAddress }])]
        : []),
    ],
  });
  return certificate.toString('pem');
}

function half(key: KeyObject, usage: 'sign' | 'verify'): webcrypto.CryptoKey {
  return key.toCryptoKey(ECDSA, true, [usage]);
}
