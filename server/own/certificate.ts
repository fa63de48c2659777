/** Keeps the uploaded certificate of the server in a Secret, so that all replicas use it and it remains after a restart. */
import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { createSecureContext } from 'node:tls';
import type { Logger } from 'pino';
import { rest } from '../../base/time.ts';
import type { Certificate } from '../../kube/certificates/certificate.ts';
import type { CertificateProvider } from '../../kube/certificates/serving.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Secret, SECRETS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { messageOf } from '../../base/errors.ts';

/** Name of the Secret. The installation creates the Secret without content, so that the server needs no right to create Secrets. */
const NAME = 'berth-server-certificate';
const CERTIFICATE_KEY = 'tls.crt';
const PRIVATE_KEY_KEY = 'tls.key';
/**
 * Longest time in milliseconds that a starting server waits for the Secret with the uploaded certificate. After this time, the server
 * starts with a certificate from files, or with a self-made one. The wait is short, because clients must be able to read cluster-info even
 * if the API server does not answer.
 */
const START_MILLISECONDS = 5_000;

export interface UploadedCertificateOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** Namespace of the Secret. */
  readonly namespace: string;
}

export class UploadedCertificate {
  readonly #client: KubeClient;
  readonly #logger: Logger;
  readonly #ref: { namespace: string; name: string };
  readonly #informer: Informer<Secret>;
  /** The resourceVersion of the last unusable Secret that was logged. Each version is logged only once. */
  #refused = '';

  constructor({ client, logger, namespace }: UploadedCertificateOptions) {
    this.#client = client;
    this.#logger = logger;
    this.#ref = { namespace, name: NAME };
    this.#informer = new Informer(client, SECRETS, {
      logger,
      namespace,
      fieldSelector: `metadata.name=${NAME}`,
    });
  }

  /** Starts to watch the Secret. Resolves when the Secret has been read, but after {@link START_MILLISECONDS} at the latest. */
  async start(signal: AbortSignal): Promise<void> {
    this.#informer.start(signal);
    const read = this.#informer.synced.catch(() => undefined);
    await Promise.race([read, rest(START_MILLISECONDS, signal)]);
  }

  /**
   * Returns a provider of the uploaded certificate. While there is no usable uploaded certificate, it provides the certificate of `other`.
   */
  orElse(other: CertificateProvider): CertificateProvider {
    return async () => this.#current() ?? (await other());
  }

  /** Stores the certificate and its key. All replicas use them within seconds. @throws PairError when no server can use them. */
  async store(pair: Certificate): Promise<void> {
    const { certificate, key } = checkedPair(pair);
    const data = { [CERTIFICATE_KEY]: encoded(certificate), [PRIVATE_KEY_KEY]: encoded(key) };
    await this.#client.mergePatch(SECRETS, this.#ref, { data });
  }

  #current(): Certificate | undefined {
    const secret = this.#informer.cache.get(keyOf({ metadata: this.#ref }));
    const { [CERTIFICATE_KEY]: certificate, [PRIVATE_KEY_KEY]: key } = secret?.data ?? {};
    if (certificate === undefined || key === undefined) {
      return undefined;
    }
    try {
      return checkedPair({ certificate: decoded(certificate), key: decoded(key) });
    } catch (error) {
      const { resourceVersion = '' } = secret?.metadata ?? {};
      if (this.#refused !== resourceVersion) {
        this.#refused = resourceVersion;
        this.#logger.error({ err: error }, 'the uploaded certificate is not usable');
      }
      return undefined;
    }
  }
}

function encoded(text: string): string {
  return Buffer.from(text).toString('base64');
}

function decoded(base64: string): string {
  return Buffer.from(base64, 'base64').toString('utf8');
}

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
  const [leaf, ...chain] = parseCertificates(pair.certificate);
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
  if (!leaf.checkPrivateKey(parseKey(pair.key))) {
    throw new PairError('keyPath', 'the key does not belong to the certificate');
  }
  try {
    createSecureContext({ cert: pair.certificate, key: pair.key });
  } catch (error) {
    throw new PairError('certPath', `TLS cannot use the certificate: ${messageOf(error)}`);
  }
  return pair;
}

function parseCertificates(pem: string): X509Certificate[] {
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

function parseKey(pem: string): KeyObject {
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
