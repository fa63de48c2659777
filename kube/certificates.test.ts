import { X509Certificate } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import {
  createAuthority,
  createKey,
  issue,
  type KeyAlgorithm,
  readKey,
  selfSigned,
  validityOf,
} from './certificates.ts';

const ALGORITHMS: KeyAlgorithm[] = ['ECDSA', 'RSA'];

describe.each(ALGORITHMS)('with a key of type %s', (algorithm) => {
  it('issues a certificate that its authority vouches for', async () => {
    const authority = await createAuthority({ commonName: 'ca', days: 2, key: await createKey(algorithm) });
    const key = await createKey(algorithm);
    const pem = await issue(authority, {
      key,
      commonName: 'name, with=syntax',
      days: 1,
      ipAddresses: ['127.0.0.1'],
    });
    const certificate = new X509Certificate(pem);
    const issuer = new X509Certificate(authority.certificate);
    expect(certificate.verify(issuer.publicKey)).toBe(true);
    expect(certificate.checkIssued(issuer)).toBe(true);
    expect(certificate.checkIP('127.0.0.1')).toBe('127.0.0.1');
    expect(certificate.toLegacyObject().subject.CN).toBe('name, with=syntax');
    expect(certificate.ca).toBe(false);
    expect(issuer.ca).toBe(true);
  });

  it('makes certificates of its own, and reads its keys again', async () => {
    const key = await createKey(algorithm);
    expect(readKey(key.pem)).toEqual(key);
    const pem = await selfSigned({ key, commonName: 'berth', dnsNames: ['localhost'], days: 10 });
    expect(new X509Certificate(pem).checkHost('localhost')).toBe('localhost');
    const days = (validityOf(pem).notAfter.getTime() - Date.now()) / 86_400_000;
    expect(days).toBeCloseTo(10, 1);
  });
});
