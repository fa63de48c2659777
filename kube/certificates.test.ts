import { X509Certificate } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import {
  createAuthority,
  createKey,
  createSigningRequest,
  issue,
  type KeyAlgorithm,
  readKey,
  readSigningRequest,
  selfSigned,
  validityOf,
} from './certificates.ts';

const ALGORITHMS: KeyAlgorithm[] = ['ECDSA', 'RSA'];

describe.each(ALGORITHMS)('with a key of type %s', (algorithm) => {
  it('reads back what a signing request asks for', async () => {
    const key = await createKey(algorithm);
    const subject = {
      commonName: 'system:node:host-1',
      organizations: ['system:nodes'],
      dnsNames: ['host-1', 'host-1.example'],
      ipAddresses: ['10.0.0.1', '2001:db8::1'],
    };
    const request = await createSigningRequest({ ...subject, key });
    expect(await readSigningRequest(request)).toEqual({ ...subject, others: [] });
  });

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

it('refuses a signing request whose signature is not its own', async () => {
  const request = await createSigningRequest({ key: await createKey(), commonName: 'a' });
  const der = Buffer.from(request.replaceAll(/-----[^-]+-----|\n/g, ''), 'base64');
  const last = der.length - 1;
  der.writeUInt8(der.readUInt8(last) ^ 1, last);
  const forged = `-----BEGIN CERTIFICATE REQUEST-----\n${der.toString('base64')}\n-----END CERTIFICATE REQUEST-----`;
  await expect(readSigningRequest(forged)).rejects.toThrow('signature of the signing request');
});
