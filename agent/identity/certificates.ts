/** The agent's two certificates over its life: taken up, asked for, replaced where they are used. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { FIRST_CERTIFICATE_SECONDS } from '../../api/v1alpha1/names.ts';
import { createKey, selfSigned, validityOf } from '../../kube/certificates.ts';
import type { KubeClient } from '../../kube/client.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { runtimeMetrics } from '../../kube/metrics.ts';
import type { Transport } from '../../kube/transport.ts';
import type { AgentConfig } from '../host/config.ts';
import type { KubeletServer } from '../kubelet/server.ts';
import { type Certificate, type CertificateRequest, requestCertificate } from './certificate.ts';
import { identityFiles, isUsable, readPair, writePair } from './identity.ts';
import { keepRenewed } from './rotation.ts';

/** A stand-in until the operator has approved a serving certificate; another one with every start of the agent. */
const SELF_SIGNED_DAYS = 365;

/** The first certificate's whole life: signers let it begin 5 minutes before it was made. */
const FIRST_MILLISECONDS = (FIRST_CERTIFICATE_SECONDS + 300) * 1000;

/** The approved one from an earlier start, else one that vouches for itself. */
export async function servingCertificate(config: AgentConfig): Promise<Certificate> {
  const stored = readPair(identityFiles(config.dataDirectory).serving);
  if (stored !== undefined && isUsable(stored, config.nodeName)) {
    return stored;
  }
  const key = await createKey('ECDSA');
  const certificate = await selfSigned({
    key,
    commonName: config.nodeName,
    ipAddresses: [config.address],
    days: SELF_SIGNED_DAYS,
  });
  return { certificate, key: key.pem };
}

export interface CertificateUsers {
  config: AgentConfig;
  client: KubeClient;
  transport: Transport;
  kubelet: KubeletServer;
  metrics: Registry;
  logger: Logger;
  signal: AbortSignal;
}

/** Renews both until the signal aborts; the Node must be in the cluster, since serving certificates are approved by its addresses. */
export function keepCertificates(users: CertificateUsers): Promise<void>[] {
  const { config, transport, kubelet, metrics, logger, signal } = users;
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
        kubelet.replaceCertificate(certificate);
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
