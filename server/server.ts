/** Starts the parts of the HTTP API in this order: connections, application, servers. Stops them in the reverse order. */
import type { Server } from 'node:http';
import { Server as HttpsServer } from 'node:https';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { VERSION } from '../api/v1alpha1/version.ts';
import {
  type CertificateProvider,
  configuredCertificate,
  selfMadeCertificate,
  serveCertificate,
} from '../kube/certificates/serving.ts';
import { type Connection, loadConnection } from '../kube/credentials.ts';
import { createMetrics, runtimeMetrics } from '../kube/metrics.ts';
import { Authorizer } from '../kube/serving/authorization.ts';
import { serveHealth, serveMetrics } from '../kube/serving/endpoints.ts';
import { listen, type ListeningServer, type RunningServer } from '../kube/serving/httpserver.ts';
import { Transport } from '../kube/transport.ts';
import { addCallers, addChallenges, Callers, PAGE_WATCHES, WATCHES } from './callers/caller.ts';
import { requireRights } from './own/rights.ts';
import { addCertificateRoutes, addClusterRoutes, clusterInfo } from './cluster.ts';
import type { ServerConfig } from './config.ts';
import { addAliases } from './dialect/aliases.ts';
import { addMetrics, type App, createApp, logRequests } from './http/app.ts';
import { createOwn, OwnClient, refuseMissingNamespaces } from './own/own.ts';
import { addDocument } from './http/openapi.ts';
import { refuseOtherNamespaces } from './http/namespaces.ts';
import { Downloads, DOWNLOADS } from './images/downloads.ts';
import { Uploads, UPLOADS } from './images/uploads.ts';
import { Deploys } from './vms/deploy.ts';
import { WaitingRequests } from './http/waiting.ts';
import { createPower } from './power/handler.ts';
import { addConsolePage } from './console/page.ts';
import { addConsoleLogs } from './console/logs.ts';
import { addConsoleReads } from './console/reads.ts';
import { addConsoleWatches, USER_WATCHES } from './console/watches.ts';
import { addSignIn } from './console/signin.ts';
import { addConsoleStreams, STREAMS, USER_STREAMS } from './console/streams.ts';
import { addDocumentationRoutes } from './documentation.ts';
import { addEmulatorRoutes } from './emulators.ts';
import { addImageCacheRoutes } from './imagecache/routes.ts';
import { addNodeRoutes } from './nodes.ts';
import { addImageRoutes, type FileTransfers } from './images/routes.ts';
import { addNamespaceRoutes } from './namespaces.ts';
import { addRegistryCredentialRoutes } from './registrycredentials.ts';
import { addRoleBindingRoutes } from './rolebindings.ts';
import { addServiceAccountRoutes } from './serviceaccounts.ts';
import type { Services } from './services.ts';
import { addVMConfigRoutes } from './vmconfigs.ts';
import { addVMPoolRoutes } from './vmpools.ts';
import { addLifeRoutes } from './vms/life.ts';
import { addVMSnapshotRoutes } from './vmsnapshots.ts';
import { addVMRoutes, PICTURES, type VMParts } from './vms/routes.ts';
import { addConsoleChanges } from './console/changes.ts';
import { addConsoleTimes } from './console/times.ts';

/**
 * Time in milliseconds in which a stopping server completes its answers. It is shorter than the 30 s after which Kubernetes kills the Pod.
 */
const ANSWER_MILLISECONDS = 15_000;

/**
 * Limits for the requests that ask the API server about tokens and rights. They are high, because CI systems can call with hundreds of
 * tokens at the same time.
 */
const CALLERS = { answers: 8_192, questions: 16, waiting: 1_024 };

export interface ServerStart {
  readonly config: ServerConfig;
  readonly kubeconfigPath: string | undefined;
  readonly logger: Logger;
}

export interface HTTPServer {
  /** Stops the server: it first refuses new connections, then completes its answers, and then closes all connections. */
  stop(): Promise<void>;
}

/** Creates the application with all routes and the parts that the routes need. It does not listen yet, and no connection is open. */
export async function assemble({
  connection,
  config,
  logger,
}: {
  connection: Connection;
  config: ServerConfig;
  logger: Logger;
}) {
  const metrics = createMetrics();
  const transport = new Transport(connection, { metrics, userAgent: 'berth-server' });
  const client = new OwnClient(transport);
  const own = createOwn({
    client,
    authorizer: new Authorizer(client, CALLERS),
    logger,
    namespaces: config.namespaces,
  });
  const callers = new Callers(connection, metrics);
  const app = createApp({ logger, tls: config.http.tls });
  logRequests(app);
  addCallers(app, callers);
  requireRights(app, own.rights);
  await addDocument(app, VERSION);
  addChallenges(app, config.cluster);
  addAliases(app, config);
  refuseOtherNamespaces(app, config.namespaces);
  refuseMissingNamespaces(app, own);
  const waiting = new WaitingRequests(WATCHES);
  const transfers = [
    new WaitingRequests(UPLOADS),
    new WaitingRequests(DOWNLOADS),
    new WaitingRequests(PICTURES),
    new WaitingRequests(PAGE_WATCHES, USER_WATCHES),
    new WaitingRequests(STREAMS, USER_STREAMS),
  ] as const;
  addMetrics(app, metrics, () => waiting.size);
  app.addHook('onSend', (_request, reply, _payload, next) => {
    if (waiting.isStopping) {
      // This header makes the client send its next request over a new connection, which leads to another replica.
      void reply.header('connection', 'close');
    }
    next();
  });
  const deploys = new Deploys({ waiting, logger, fullStatus: config.http.aliases.fullClusterStatus });
  const uploads = new Uploads(transfers[0], logger);
  const downloads = new Downloads(transfers[1]);
  addRoutes(
    app,
    { config, clusterInfo: clusterInfo(config, connection), own, waiting },
    { deploys, uploads, downloads, pictures: transfers[2], watching: transfers[3], streams: transfers[4] },
  );
  await app.ready();
  const close = async () => {
    await Promise.all([callers.close(), transport.close()]);
  };
  return { app, metrics, client, own, waiting, transfers, close };
}

/**
 * Starts the server and resolves when it listens. @throws Error when the address of the API server is unknown, or when the certificate is
 * not usable.
 */
export async function startServer({ config, kubeconfigPath, logger }: ServerStart): Promise<HTTPServer> {
  const connection = await loadConnection({ kubeconfigPath });
  const { app, metrics, client, own, waiting, transfers, close } = await assemble({
    connection,
    config,
    logger,
  });
  const power = config.power.enabled ? createPower({ client, config, logger, metrics }) : undefined;
  const ended = new AbortController();
  own.watches.start(ended.signal);
  power?.start(ended.signal);
  await own.certificate.start(ended.signal);
  const certificates = certificateProvider(config);
  const provider = own.certificate.orElse(certificates);
  const toClients = async (server: Server, address: string): Promise<ListeningServer> => {
    await serveClients(server, { provider, logger, metrics, signal: ended.signal });
    return await listen(server, address);
  };
  const ports = [
    await toClients(app.server, config.http.address),
    ...(power === undefined ? [] : [await toClients(power.server, config.power.address)]),
  ];
  const servers: RunningServer[] = [
    ...ports,
    await serveMetrics({
      listen: config.metrics.address,
      metrics,
      // Each port has its own authorizer, so that invalid tokens at one port do not delay the answers at the other port.
      authorizer: new Authorizer(client),
      certificates,
      logger,
    }),
    await serveHealth({
      listen: config.health.address,
      live: { process: () => undefined },
      ready: { caches: () => own.watches.unready() ?? power?.unready() },
      logger,
    }),
  ];
  const addresses = { http: config.http.address, metrics: config.metrics.address };
  logger.info({ ...addresses, ...(power && { power: config.power.address }) }, 'listening');
  return {
    stop: async () => {
      const all = [waiting, ...transfers, ...(power === undefined ? [] : [power.waiting])];
      const waits = all.map(async (requests) => await requests.stop());
      await Promise.all([...waits, ...ports.map(async (port) => await port.drain(ANSWER_MILLISECONDS))]);
      ended.abort();
      await Promise.all(servers.map(async (server) => await server.close()));
      await close();
    },
  };
}

interface ClientOptions {
  readonly provider: CertificateProvider;
  readonly logger: Logger;
  readonly metrics: Registry;
  readonly signal: AbortSignal;
}

/** Shows clients the certificate of the provider, and follows its changes. A metric shows when the certificate expires. */
export async function serveClients(server: Server, { metrics, ...options }: ClientOptions): Promise<void> {
  if (!(server instanceof HttpsServer)) {
    options.logger.warn('clients send their tokens without TLS');
    return;
  }
  const { certificateEnd } = runtimeMetrics(metrics);
  await serveCertificate(server, {
    ...options,
    onServed: (notAfter) => certificateEnd.set({ certificate: 'http' }, notAfter.getTime() / 1000),
  });
}

function certificateProvider({ http }: ServerConfig): CertificateProvider {
  const { dnsNames } = http;
  return configuredCertificate(http, () =>
    selfMadeCertificate({ commonName: 'berth-server', dnsNames, ipAddresses: ['127.0.0.1'] }),
  );
}

function addRoutes(
  app: App,
  services: Services,
  {
    deploys,
    pictures,
    watching,
    streams,
    ...transfers
  }: FileTransfers & VMParts & { readonly watching: WaitingRequests; readonly streams: WaitingRequests },
): void {
  addClusterRoutes(app, services);
  addCertificateRoutes(app, services);
  addNamespaceRoutes(app, services);
  addNodeRoutes(app, services);
  addImageCacheRoutes(app, services);
  addVMRoutes(app, services, { deploys, pictures });
  addLifeRoutes(app);
  addVMConfigRoutes(app, services);
  addVMPoolRoutes(app, services);
  addVMSnapshotRoutes(app);
  addImageRoutes(app, services, transfers);
  addEmulatorRoutes(app, services);
  addRegistryCredentialRoutes(app);
  addServiceAccountRoutes(app);
  addRoleBindingRoutes(app);
  addDocumentationRoutes(app);
  addConsolePage(app);
  addSignIn(app, services);
  addConsoleReads(app, services);
  addConsoleWatches(app, services, watching);
  addConsoleChanges(app, services.config.dpiMaximum);
  addConsoleLogs(app, watching);
  addConsoleStreams(app, services, streams);
  addConsoleTimes(app, services);
}
