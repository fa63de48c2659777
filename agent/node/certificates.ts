/** The agent's two certificates over its life: taken up, asked for, replaced where they are used. */
import type { Logger } from 'pino';
import { createKey, selfSigned } from '../../kube/certificates.ts';
import type { KubeClient } from '../../kube/client.ts';
import { loadConnection } from '../../kube/credentials.ts';
import type { Transport } from '../../kube/transport.ts';
import type { AgentConfig } from '../config.ts';
import type { KubeletServer } from '../kubelet/server.ts';
import { type Certificate, type CertificateRequest, requestCertificate } from './certificate.ts';
import { identityFiles, isUsable, readPair, writePair } from './identity.ts';
import { keepRenewed } from './rotation.ts';

/** A stand-in until the operator has approved a serving certificate; another one with every start of the agent. */
const SELF_SIGNED_DAYS = 365;

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
  logger: Logger;
  signal: AbortSignal;
}

/** Renews both until the signal aborts; the Node must be in the cluster, since serving certificates are approved by its addresses. */
export function keepCertificates(users: CertificateUsers): Promise<void>[] {
  const { config, client, transport, kubelet, logger, signal } = users;
  const { nodeName, certificates, address } = config;
  const files = identityFiles(config.dataDirectory);
  const serving = readPair(files.serving);
  const ask = (request: Omit<CertificateRequest, 'nodeName'>) => (signal: AbortSignal) =>
    requestCertificate(client, { nodeName, ...request }, signal);
  return [
    keepRenewed({
      current: readPair(files.client),
      request: ask({ kind: 'client', ipAddresses: [], expirationSeconds: certificates.clientSeconds }),
      use: async (certificate) => {
        writePair(files.client, certificate);
        transport.replaceCredentials(await loadConnection({ kubeconfigPath: files.kubeconfig }));
      },
      logger: logger.child({ certificate: 'client' }),
      signal,
    }),
    keepRenewed({
      current: isUsable(serving, nodeName) ? serving : undefined,
      request: ask({
        kind: 'serving',
        ipAddresses: [address],
        expirationSeconds: certificates.servingSeconds,
      }),
      use: async (certificate) => {
        writePair(files.serving, certificate);
        kubelet.replaceCertificate(certificate);
      },
      logger: logger.child({ certificate: 'serving' }),
      signal,
    }),
  ];
}
