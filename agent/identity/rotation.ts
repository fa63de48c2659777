/**
 * Renews the agent's certificates. The agent requests a new certificate after 70 to 90 % of the old certificate's lifetime, like a kubelet.
 */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { FIRST_CERTIFICATE_SECONDS } from '../../api/v1alpha1/names.ts';
import { Backoff } from '../../base/backoff.ts';
import { pause } from '../../base/time.ts';
import { type Certificate, parseValidity } from '../../kube/certificates/certificate.ts';
import type { KubeClient } from '../../kube/client.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { isUnauthorized } from '../../kube/errors.ts';
import { runtimeMetrics } from '../../kube/metrics.ts';
import type { Transport } from '../../kube/transport.ts';
import {
  type CertificateRequest,
  identityFiles,
  type IdentitySettings,
  isUsable,
  readPair,
  requestCertificate,
  writePair,
} from './certificates.ts';

/**
 * Two shares of a certificate's lifetime: the smallest share after which the agent renews the certificate, and the largest random addition
 * to this share. With the random addition, hosts that joined at the same time renew at different times. A kubelet has the same shares.
 */
const RENEW_FROM_SHARE = 0.7;
const RENEW_SPREAD_SHARE = 0.2;
/**
 * Longest single wait, in milliseconds. The agent divides a longer wait into several waits, and reads the clock of the host after each of
 * them. A timer does not notice that the clock was set forward, or that the host was suspended.
 */
const LONGEST_SLEEP_MILLISECONDS = 60_000;
/**
 * Shortest time between two renewals, in milliseconds. If the clock of the host is too fast, even a new certificate seems to be nearly at
 * its end. Without this time, the agent would request certificates without a pause.
 */
const RENEWAL_GAP_MILLISECONDS = 60_000;
const RETRY_FIRST_MILLISECONDS = 1_000;
/**
 * Longest wait between two attempts to renew a certificate, in milliseconds. The wait is short, because usually a person must fix the cause
 * of the failure. This person wants to see the result within minutes.
 */
const RETRY_CAP_MILLISECONDS = 60_000;
/**
 * Longest lifetime, in milliseconds, of the first certificate, which a host gets when it joins. The lifetime is 5 minutes longer than
 * {@link FIRST_CERTIFICATE_SECONDS}, because signers let the validity of a certificate begin 5 minutes in the past.
 */
const FIRST_MILLISECONDS = (FIRST_CERTIFICATE_SECONDS + 300) * 1000;

export interface RotationOptions {
  /** The first request comes after this promise has resolved. If the promise rejects, the renewal ends with its error. */
  begin?: Promise<void>;
  /** The certificate in use. If undefined, the first certificate is requested immediately. */
  current: Certificate | undefined;
  /** Requests the next certificate. */
  request: (signal: AbortSignal) => Promise<Certificate>;
  /** Installs the certificate for use. */
  use: (certificate: Certificate) => Promise<void>;
  logger: Logger;
  signal: AbortSignal;
  now?: () => number;
  random?: () => number;
  sleep?: (milliseconds: number, signal: AbortSignal) => Promise<void>;
}

/** Returns the time at which the agent requests the next certificate, in milliseconds since the epoch. `random` is between 0 and 1. */
export function renewalTime(certificate: string, random: number): number {
  const { notBefore, notAfter } = parseValidity(certificate);
  const life = notAfter.getTime() - notBefore.getTime();
  return notBefore.getTime() + life * (RENEW_FROM_SHARE + RENEW_SPREAD_SHARE * random);
}

/** Renews a certificate until the signal aborts. Failures are retried without limit, because an expired certificate cuts the host off. */
export async function keepRenewed(options: RotationOptions): Promise<void> {
  const { logger, signal, now = Date.now, random = Math.random, sleep = pause } = options;
  const backoff = new Backoff({
    firstMilliseconds: RETRY_FIRST_MILLISECONDS,
    capMilliseconds: RETRY_CAP_MILLISECONDS,
  });
  let renewAt = options.current === undefined ? 0 : renewalTime(options.current.certificate, random());
  // Shortest wait before the next request. It is no time of the clock, because a clock that is set back would lengthen the wait.
  let gap = 0;
  await options.begin;
  while (!signal.aborted) {
    try {
      for (let left = Math.max(gap, renewAt - now()); left > 0; left = renewAt - now()) {
        await sleep(Math.min(left, LONGEST_SLEEP_MILLISECONDS), signal);
      }
      const certificate = await options.request(signal);
      await options.use(certificate);
      renewAt = renewalTime(certificate.certificate, random());
      gap = RENEWAL_GAP_MILLISECONDS;
      backoff.reset();
      logger.info({ renewAt: new Date(renewAt).toISOString() }, 'The certificate was renewed');
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      gap = backoff.next();
      logger.error({ err: error, retryInMilliseconds: gap }, 'The certificate could not be renewed');
    }
  }
}

export interface CertificateUsers {
  config: IdentitySettings;
  /** Whether the agent has a node's certificate. */
  isNode: boolean;
  client: KubeClient;
  /**
   * Requests a client certificate with the bootstrap kubeconfig, and stores it. @throws Error when the cluster refuses this host, or when
   * the bootstrap kubeconfig cannot be read.
   */
  join: () => Promise<Certificate>;
  /** Resolves when the Node exists. The operator compares the addresses in a request with those of the Node. */
  nodeKnown: Promise<void>;
  transport: Transport;
  /** The server that uses the serving certificate. */
  server: { replaceCertificate(certificate: Certificate): void };
  metrics: Registry;
  logger: Logger;
  signal: AbortSignal;
}

/**
 * Renews the client certificate and the serving certificate until the signal aborts. A host with a kubeconfig of its own has no client
 * certificate, and a serving certificate only if the configuration names its signer.
 */
export function keepCertificates(users: CertificateUsers): Promise<void>[] {
  const isServing = users.isNode || users.config.certificates.servingSigner !== undefined;
  return [...(users.isNode ? [keepClient(users)] : []), ...(isServing ? [keepServing(users)] : [])];
}

function asking({ client, config, logger }: CertificateUsers, request: Omit<CertificateRequest, 'nodeName'>) {
  const whole = { nodeName: config.nodeName, tell: (message: string) => logger.warn(message), ...request };
  return (signal: AbortSignal): Promise<Certificate> => requestCertificate(client, whole, signal);
}

/** Renews the client certificate. If the API server no longer accepts it, the host joins again. */
async function keepClient(users: CertificateUsers): Promise<void> {
  const { config, transport, metrics, logger, signal } = users;
  const { nodeName, certificates } = config;
  const files = identityFiles(config.dataDirectory);
  const client = readPair(files.client);
  tellEnd(metrics, 'client', client);
  const renew = asking(users, {
    kind: 'client',
    ipAddresses: [],
    expirationSeconds: certificates.clientSeconds,
  });
  const use = async (certificate: Certificate): Promise<void> => {
    writePair(files.client, certificate);
    tellEnd(metrics, 'client', certificate);
    transport.replaceCredentials(await loadConnection({ kubeconfigPath: files.kubeconfig }));
  };
  const renewOrJoin = async (signal: AbortSignal): Promise<Certificate> => {
    try {
      return await renew(signal);
    } catch (error) {
      // Only the API server knows whether the certificate is still valid. The clock of this host can be wrong.
      if (!isUnauthorized(error)) {
        throw error;
      }
    }
    logger.warn({ nodeName }, 'The cluster refuses the certificate of this host; the host joins again');
    const first = await users.join();
    if (!isShort(first, certificates.clientSeconds)) {
      return first;
    }
    await use(first);
    return await renew(signal);
  };
  // This renewal does not wait for the Node, because the certificate can expire before the Node exists.
  await keepRenewed({
    // The first certificate is short-lived and could expire during an outage of the cluster. So the agent renews this certificate
    // immediately.
    current: isShort(client, certificates.clientSeconds) ? undefined : client,
    request: renewOrJoin,
    use,
    logger: logger.child({ certificate: 'client' }),
    signal,
  });
}

async function keepServing(users: CertificateUsers): Promise<void> {
  const { config, server, metrics, logger, signal } = users;
  const { nodeName, certificates, address } = config;
  const files = identityFiles(config.dataDirectory);
  const stored = readPair(files.serving);
  const serving = isUsable(stored, nodeName, address) ? stored : undefined;
  tellEnd(metrics, 'serving', serving);
  await keepRenewed({
    begin: users.nodeKnown,
    current: serving,
    request: asking(users, {
      kind: 'serving',
      signerName: certificates.servingSigner,
      ipAddresses: [address],
      expirationSeconds: certificates.servingSeconds,
    }),
    use: async (certificate) => {
      writePair(files.serving, certificate);
      tellEnd(metrics, 'serving', certificate);
      server.replaceCertificate(certificate);
    },
    logger: logger.child({ certificate: 'serving' }),
    signal,
  });
}

/**
 * Reports whether the agent must replace a certificate at once. This is the case for the short-lived certificate with which
 * the agent joined the cluster, if the configuration sets a longer lifetime.
 */
function isShort(current: Certificate | undefined, wantedSeconds: number): boolean {
  if (current === undefined || wantedSeconds <= FIRST_CERTIFICATE_SECONDS) {
    return false;
  }
  const { notBefore, notAfter } = parseValidity(current.certificate);
  return notAfter.getTime() - notBefore.getTime() <= FIRST_MILLISECONDS;
}

function tellEnd(metrics: Registry, which: 'client' | 'serving', current: Certificate | undefined): void {
  if (current !== undefined) {
    const seconds = parseValidity(current.certificate).notAfter.getTime() / 1000;
    runtimeMetrics(metrics).certificateEnd.set({ certificate: which }, seconds);
  }
}
