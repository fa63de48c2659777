/** Renews the agent's certificates: a new one is asked for at 70 to 90 % of the old one's life, as a kubelet does. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { FIRST_CERTIFICATE_SECONDS } from '../../api/v1alpha1/names.ts';
import { Backoff } from '../../base/backoff.ts';
import { pause } from '../../base/time.ts';
import { type Certificate, validityOf } from '../../kube/certificates.ts';
import type { KubeClient } from '../../kube/client.ts';
import { loadConnection } from '../../kube/credentials.ts';
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

/** A kubelet's window; spread, so that hosts that joined together do not renew together. */
const RENEW_FROM_SHARE = 0.7;
const RENEW_SPREAD_SHARE = 0.2;
/** Node's timers hold at most 24.8 days. */
const LONGEST_SLEEP_MILLISECONDS = 24 * 3600 * 1000;
const RETRY_FIRST_MILLISECONDS = 1_000;
/** A person refuses most requests, and wants to see the next try within minutes. */
const RETRY_CAP_MILLISECONDS = 60_000;
/** The first certificate's whole life: signers let it begin 5 minutes before it was made. */
const FIRST_MILLISECONDS = (FIRST_CERTIFICATE_SECONDS + 300) * 1000;

export interface RotationOptions {
  /** The certificate in use. Undefined if there is none yet; then the first is asked for at once. */
  current: Certificate | undefined;
  /** Asks for the next. */
  request: (signal: AbortSignal) => Promise<Certificate>;
  /** Puts it to use. */
  use: (certificate: Certificate) => Promise<void>;
  logger: Logger;
  signal: AbortSignal;
  now?: () => number;
  random?: () => number;
  sleep?: (milliseconds: number, signal: AbortSignal) => Promise<void>;
}

/** When the next certificate is to be asked for, in milliseconds since the epoch. `random` is between 0 and 1. */
export function renewalTime(certificate: string, random: number): number {
  const { notBefore, notAfter } = validityOf(certificate);
  const life = notAfter.getTime() - notBefore.getTime();
  return notBefore.getTime() + life * (RENEW_FROM_SHARE + RENEW_SPREAD_SHARE * random);
}

/** Runs until the signal aborts; failures are tried again for ever, since an expired certificate cuts the host off. */
export async function keepRenewed(options: RotationOptions): Promise<void> {
  const { logger, signal, now = Date.now, random = Math.random, sleep = pause } = options;
  const backoff = new Backoff({
    firstMilliseconds: RETRY_FIRST_MILLISECONDS,
    capMilliseconds: RETRY_CAP_MILLISECONDS,
  });
  let renewAt = options.current === undefined ? now() : renewalTime(options.current.certificate, random());
  while (!signal.aborted) {
    try {
      for (let left = renewAt - now(); left > 0; left = renewAt - now()) {
        await sleep(Math.min(left, LONGEST_SLEEP_MILLISECONDS), signal);
      }
      const certificate = await options.request(signal);
      await options.use(certificate);
      renewAt = renewalTime(certificate.certificate, random());
      backoff.reset();
      logger.info({ renewAt: new Date(renewAt).toISOString() }, 'certificate renewed');
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      const wait = backoff.next();
      logger.error({ err: error, retryInMilliseconds: wait }, 'certificate not renewed');
      renewAt = now() + wait;
    }
  }
}

export interface CertificateUsers {
  config: IdentitySettings;
  client: KubeClient;
  transport: Transport;
  /** The server whose certificate is the serving one. */
  server: { replaceCertificate(certificate: Certificate): void };
  metrics: Registry;
  logger: Logger;
  signal: AbortSignal;
}

/** Renews both until the signal aborts; the Node must be in the cluster, since serving certificates are approved by its addresses. */
export function keepCertificates(users: CertificateUsers): Promise<void>[] {
  const { config, transport, server, metrics, logger, signal } = users;
  const { nodeName, certificates, address } = config;
  const files = identityFiles(config.dataDirectory);
  const client = readPair(files.client);
  const stored = readPair(files.serving);
  const serving = isUsable(stored, nodeName) ? stored : undefined;
  tellEnd(metrics, 'client', client);
  tellEnd(metrics, 'serving', serving);
  const ask = (request: Omit<CertificateRequest, 'nodeName'>) => (signal: AbortSignal) =>
    requestCertificate(users.client, { nodeName, ...request }, signal);
  return [
    keepRenewed({
      // The one that the host joined with gives it too little time to live through an outage.
      current: isShort(client, certificates.clientSeconds) ? undefined : client,
      request: ask({ kind: 'client', ipAddresses: [], expirationSeconds: certificates.clientSeconds }),
      use: async (certificate) => {
        writePair(files.client, certificate);
        tellEnd(metrics, 'client', certificate);
        transport.replaceCredentials(await loadConnection({ kubeconfigPath: files.kubeconfig }));
      },
      logger: logger.child({ certificate: 'client' }),
      signal,
    }),
    keepRenewed({
      current: serving,
      request: ask({
        kind: 'serving',
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
    }),
  ];
}

/** Whether a certificate is the short one that a host joins with, where a longer one is wanted. */
function isShort(current: Certificate | undefined, wantedSeconds: number): boolean {
  if (current === undefined || wantedSeconds <= FIRST_CERTIFICATE_SECONDS) {
    return false;
  }
  const { notBefore, notAfter } = validityOf(current.certificate);
  return notAfter.getTime() - notBefore.getTime() <= FIRST_MILLISECONDS;
}

function tellEnd(metrics: Registry, which: 'client' | 'serving', current: Certificate | undefined): void {
  if (current !== undefined) {
    const seconds = validityOf(current.certificate).notAfter.getTime() / 1000;
    runtimeMetrics(metrics).certificateEnd.set({ certificate: which }, seconds);
  }
}
