import { X509Certificate } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { createKey, type KeyAlgorithm, readKey, selfSigned, parseValidity } from './certificate.ts';

const ALGORITHMS: KeyAlgorithm[] = ['ECDSA', 'RSA'];

describe.each(ALGORITHMS)('with a key of type %s', (algorithm) => {
  it('makes certificates of its own, and reads its keys again', async () => {
    const key = await createKey(algorithm);
    expect(readKey(key.pem)).toEqual(key);
    const names = { dnsNames: ['localhost'], ipAddresses: ['127.0.0.1'] };
    const pem = await selfSigned({ key, commonName: 'name, with=syntax', ...names, days: 10 });
    const certificate = new X509Certificate(pem);
    expect(certificate.verify(certificate.publicKey)).toBe(true);
    expect(certificate.checkHost('localhost')).toBe('localhost');
    expect(certificate.checkIP('127.0.0.1')).toBe('127.0.0.1');
    expect(certificate.toLegacyObject().subject.CN).toBe('name, with=syntax');
    expect(certificate.ca).toBe(false);
    const days = (parseValidity(pem).notAfter.getTime() - Date.now()) / 86_400_000;
    expect(days).toBeCloseTo(10, 1);
  });
});
