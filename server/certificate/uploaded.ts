/** Keeps the uploaded certificate of the server in a Secret, so that all replicas use it and it remains after a restart. */
import type { Logger } from 'pino';
import { rest } from '../../base/time.ts';
import type { Certificate } from '../../kube/certificates/certificate.ts';
import type { CertificateProvider } from '../../kube/certificates/serving.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Secret, SECRETS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { checkedPair } from './pair.ts';

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
