/** Checks a certificate and its key that somebody uploaded for the server. */
import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { createSecureContext } from 'node:tls';
import { messageOf } from '../../base/errors.ts';
import type { Certificate } from '../../kube/certificates/certificate.ts';

/** Largest number of certificates in a chain. Chains of public authorities have at most four. */
const CHAIN = 10;
const BLOCK = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g;

/** Error whose message describes the mistake in the uploaded files. The message never contains the key. */
export class PairError extends Error {
  override readonly name = 'PairError';
  readonly field: 'certPath' | 'keyPath';

  constructor(field: 'certPath' | 'keyPath', message: string) {
    super(message);
    this.field = field;
  }
}

/**
 * Returns the certificate and its key if a server can use them now. The text of the certificate can also contain the chain: after each
 * certificate comes the certificate of its issuer. `now` is in milliseconds since 1970.
 *
 * @throws PairError when a file is not readable, the files do not belong together, or a certificate is not valid now.
 */
export function checkedPair(pair: Certificate, now = Date.now()): Certificate {
  const [leaf, ...chain] = certificatesIn(pair.certificate);
  if (leaf === undefined) {
    throw new PairError('certPath', 'there is no certificate in PEM form');
  }
  for (const [index, certificate] of [leaf, ...chain].entries()) {
    refuseInvalidTime(certificate, now);
    const issuer = chain[index];
    if (issuer !== undefined && !certificate.checkIssued(issuer)) {
      throw new PairError(
        'certPath',
        `the chain is not in order: certificate ${index + 2} did not issue the certificate before it`,
      );
    }
  }
  if (!leaf.checkPrivateKey(keyIn(pair.key))) {
    throw new PairError('keyPath', 'the key does not belong to the certificate');
  }
  try {
    createSecureContext({ cert: pair.certificate, key: pair.key });
  } catch (error) {
    throw new PairError('certPath', `TLS cannot use the certificate: ${messageOf(error)}`);
  }
  return pair;
}

function certificatesIn(pem: string): X509Certificate[] {
  const blocks = pem.match(BLOCK) ?? [];
  if (blocks.length > CHAIN) {
    throw new PairError('certPath', `the chain has more than ${CHAIN} certificates`);
  }
  try {
    return blocks.map((block) => new X509Certificate(block));
  } catch {
    throw new PairError('certPath', 'a certificate is not readable');
  }
}

function refuseInvalidTime({ validFromDate, validToDate, subject }: X509Certificate, now: number): void {
  const name = subject.replaceAll('\n', ', ');
  if (validToDate.getTime() <= now) {
    throw new PairError('certPath', `the certificate of ${name} expired at ${validToDate.toISOString()}`);
  }
  if (validFromDate.getTime() > now) {
    throw new PairError(
      'certPath',
      `the certificate of ${name} is not valid before ${validFromDate.toISOString()}`,
    );
  }
}

function keyIn(pem: string): KeyObject {
  let key: KeyObject;
  try {
    key = createPrivateKey(pem);
  } catch {
    // The library's message is left out here, because it can quote the key.
    throw new PairError(
      'keyPath',
      'the private key is not readable. It must be in PEM form and must not have a passphrase',
    );
  }
  if (key.asymmetricKeyType !== 'rsa' && key.asymmetricKeyType !== 'ec') {
    throw new PairError(
      'keyPath',
      `keys of the type ${key.asymmetricKeyType ?? ''} are not supported: use RSA or ECDSA`,
    );
  }
  return key;
}
