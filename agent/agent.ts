/** The agent put together: identity, Node, Lease, certificates, kubelet endpoints and Pods, started in that order. */
import type { Logger } from 'pino';
import { createKey, selfSigned } from '../kube/certificates.ts';
import { KubeClient } from '../kube/client.ts';
import { loadConnection } from '../kube/credentials.ts';
import { createMetrics } from '../kube/metrics.ts';
import { Transport } from '../kube/transport.ts';
import type { AgentConfig } from './config.ts';
import { Authorizer } from './kubelet/authorizer.ts';
import { LogRefusedError } from './kubelet/logs.ts';
import { KubeletServer } from './kubelet/server.ts';
import { type Certificate, requestCertificate } from './node/certificate.ts';
import { hostFacts } from './node/facts.ts';
import { identityFiles, isUsable, readPair, takeIdentity, writePair } from './node/identity.ts';
import { NodeKeeper } from './node/keeper.ts';
import { NodeLease } from './node/lease.ts';
import { keepRenewed } from './node/rotation.ts';

/** A stand-in until the operator has approved a serving certificate; renewed with every start of the agent. */
const SELF_SIGNED_DAYS = 365;

/** Runs until the signal aborts. Machines are left running. */
export async function runAgent(config: AgentConfig, logger: Logger, signal: AbortSignal): Promise<void> {
  const metrics = createMetrics();
  const identity = await takeIdentity({ config, logger, metrics, signal });
  const transport = new Transport(identity.connection, { metrics, userAgent: 'berth-agent' });
  const client = new KubeClient(transport);
  const serving = await servingCertificate(config);
  const kubelet = new KubeletServer({
    listenAddress: config.kubelet.listenAddress ?? config.address,
    port: config.kubelet.port,
    clientCAFile: config.kubelet.clientCAFile,
    certificate: serving,
    authorizer: new Authorizer(client, config.nodeName),
    logs: async () => {
      throw new LogRefusedError('no such machine on this host');
    },
    metrics,
    logger,
  });
  const kubeletPort = await kubelet.listen();
  const keeper = new NodeKeeper({
    client,
    config,
    facts: await hostFacts(config, 'qemu://0'),
    state: { kubeletPort, images: [], nat: undefined, diskPressure: false },
    metrics,
    logger,
  });
  await keeper.start(signal);
  const lease = new NodeLease({
    client,
    nodeName: config.nodeName,
    node: () => keeper.node,
    fenceAfterMilliseconds: config.fenceAfterSeconds * 1000,
    onFenced: (fenced) => logger.warn({ fenced }, 'fence'),
    logger,
  });
  const rotations = identity.isNode
    ? keepCertificates({ config, client, transport, kubelet, logger, signal })
    : [];
  await Promise.all([lease.run(signal), ...rotations]);
  await keeper.drained();
  await kubelet.close();
  await transport.close();
}

/** The approved one from an earlier start, else one that vouches for itself. */
async function servingCertificate(config: AgentConfig): Promise<Certificate> {
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

function keepCertificates(o: {
  config: AgentConfig;
  client: KubeClient;
  transport: Transport;
  kubelet: KubeletServer;
  logger: Logger;
  signal: AbortSignal;
}): Promise<void>[] {
  const { config, client, signal } = o;
  const files = identityFiles(config.dataDirectory);
  const { nodeName } = config;
  const { clientSeconds, servingSeconds } = config.certificates;
  const storedServing = readPair(files.serving);
  return [
    keepRenewed({
      current: readPair(files.client),
      request: (signal) =>
        requestCertificate(
          client,
          { nodeName, kind: 'client', ipAddresses: [], expirationSeconds: clientSeconds },
          signal,
        ),
      use: async (certificate) => {
        writePair(files.client, certificate);
        o.transport.replaceCredentials(await loadConnection({ kubeconfigPath: files.kubeconfig }));
      },
      logger: o.logger.child({ certificate: 'client' }),
      signal,
    }),
    keepRenewed({
      current: isUsable(storedServing, nodeName) ? storedServing : undefined,
      request: (signal) =>
        requestCertificate(
          client,
          { nodeName, kind: 'serving', ipAddresses: [config.address], expirationSeconds: servingSeconds },
          signal,
        ),
      use: async (certificate) => {
        writePair(files.serving, certificate);
        o.kubelet.replaceCertificate(certificate);
      },
      logger: o.logger.child({ certificate: 'serving' }),
      signal,
    }),
  ];
}
