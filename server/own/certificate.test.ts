import { generateKeyPairSync } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { createKey, type KeyAlgorithm, selfSigned } from '../../kube/certificates/certificate.ts';
import { checkedPair } from './certificate.ts';

const DAY_MILLISECONDS = 24 * 60 * 60 * 1000;

async function pairOf(algorithm: KeyAlgorithm = 'ECDSA') {
  const key = await createKey(algorithm);
  const certificate = await selfSigned({ commonName: 'berth', dnsNames: ['*.berth.example'], key, days: 2 });
  return { certificate, key: key.pem };
}

describe('an uploaded certificate', () => {
  it('may have an RSA or an ECDSA key', async () => {
    for (const algorithm of ['RSA', 'ECDSA'] as const) {
      const pair = await pairOf(algorithm);
      expect(checkedPair(pair)).toBe(pair);
    }
  });

  it('is refused outside its validity', async () => {
    const pair = await pairOf();
    expect(() => checkedPair(pair, Date.now() + 3 * DAY_MILLISECONDS)).toThrow(
      /^the certificate of CN=berth expired at/,
    );
    expect(() => checkedPair(pair, Date.now() - DAY_MILLISECONDS)).toThrow(/is not valid before/);
  });

  it('is refused with the key of another one, with a chain out of order, or when it is not readable', async () => {
    const [one, two] = [await pairOf(), await pairOf()];
    const encrypted = generateKeyPairSync('ec', {
      namedCurve: 'P-256',
      privateKeyEncoding: { type: 'pkcs8', format: 'pem', cipher: 'aes-256-cbc', passphrase: 'secret' },
      publicKeyEncoding: { type: 'spki', format: 'pem' },
    });
    const ed25519 = generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' });
    for (const [certificate, key, message] of [
      [one.certificate, two.key, 'the key does not belong to the certificate'],
      [one.certificate + two.certificate, one.key, 'the chain is not in order'],
      [one.certificate.repeat(11), one.key, 'more than 10 certificates'],
      ['', one.key, 'no certificate in PEM form'],
      ['-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----', one.key, 'not readable'],
      [one.certificate, 'key', 'the private key is not readable'],
      [one.certificate, encrypted.privateKey, 'must not have a passphrase'],
      [one.certificate, String(ed25519), 'use RSA or ECDSA'],
    ] as const) {
      expect(() => checkedPair({ certificate, key })).toThrow(message);
    }
  });
});
