/** Starts the parts of the HTTP API in this order: connections, application, servers. Stops them in the reverse order. */
import { Server as HttpsServer } from 'node:https';
import type { Logger } from 'pino';
import { VERSION } from '../api/v1alpha1/version.ts';
import {
  type CertificateProvider,
  configuredCertificate,
  selfMadeCertificate,
  serveCertificate,
} from '../kube/certificates/serving.ts';
import { type Connection, loadConnection } from '../kube/credentials.ts';
import { createMetrics } from '../kube/metrics.ts';
import { Authorizer } from '../kube/serving/authorization.ts';
import { serveHealth, serveMetrics } from '../kube/serving/endpoints.ts';
import { listen, type RunningServer } from '../kube/serving/httpserver.ts';
import { Transport } from '../kube/transport.ts';
import { Callers, WATCHES } from './callers/caller.ts';
import { addChallenges } from './callers/challenge.ts';
import { addCallers } from './callers/requests.ts';
import { clusterInfo } from './cluster/info.ts';
import type { ServerConfig } from './config.ts';
import { addAliases } from './http/aliases.ts';
import { createApp } from './http/app.ts';
import { refuseMissingNamespaces } from './own/namespaces.ts';
import { addMetrics } from './http/metrics.ts';
import { addDocument } from './http/openapi.ts';
import { OwnClient } from './own/client.ts';
import { createOwn } from './own/own.ts';
import { refuseOtherNamespaces } from './http/namespaces.ts';
import { addRoutes } from './routes.ts';
import { Deploys } from './vms/deploy.ts';
import { WaitingRequests } from './http/waiting.ts';

/** Time in which a stopping server sends the answers under way. Kubernetes kills a Pod 30 s after it was told to stop. */
const ANSWER_MILLISECONDS = 15_000;

/** Limits of questions about callers: CI systems with hundreds of tokens may ask at once. */
const CALLERS = { answers: 8_192, questions: 16, waiting: 1_024 };

export interface ServerStart {
  readonly config: ServerConfig;
  readonly kubeconfigPath: string | undefined;
  readonly logger: Logger;
}

export interface HTTPServer {
  /** Ends the process' work: no new connections, then the answers under way, then all connections. */
  stop(): Promise<void>;
}

/** Creates the application with all routes, and everything that they need. Nothing listens, and no connection is open. */
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
  const authorizer = new Authorizer(client, CALLERS);
  const own = createOwn({ client, authorizer, logger, namespaces: config.namespaces });
  const callers = new Callers(connection, metrics);
  const app = createApp({ logger, tls: config.http.tls });
  addCallers(app, callers);
  await addDocument(app, VERSION);
  addChallenges(app, config.cluster);
  addAliases(app, config);
  refuseOtherNamespaces(app, config.namespaces);
  refuseMissingNamespaces(app, own);
  const waiting = new WaitingRequests(WATCHES);
  addMetrics(app, metrics, () => waiting.size);
  app.addHook('onSend', (_request, reply, _payload, next) => {
    if (waiting.isStopping) {
      // The client then sends its next request to another replica.
      void reply.header('connection', 'close');
    }
    next();
  });
  const deploys = new Deploys({ waiting, logger, fullStatus: config.http.aliases.fullClusterStatus });
  addRoutes(app, { config, clusterInfo: clusterInfo(config, connection), own, waiting }, deploys);
  await app.ready();
  const close = async () => {
    await Promise.all([callers.close(), transport.close()]);
  };
  return { app, metrics, client, own, waiting, close };
}

/** Starts the server and resolves when it listens. @throws Error without an API server's address, or with an unusable certificate. */
export async function startServer({ config, kubeconfigPath, logger }: ServerStart): Promise<HTTPServer> {
  const connection = await loadConnection({ kubeconfigPath });
  const { app, metrics, client, own, waiting, close } = await assemble({ connection, config, logger });
  const ended = new AbortController();
  own.watches.start(ended.signal);
  await own.certificate.start(ended.signal);
  const certificates = certificateProvider(config);
  const provider = own.certificate.orElse(certificates);
  if (app.server instanceof HttpsServer) {
    await serveCertificate(app.server, { provider, logger, signal: ended.signal });
  } else {
    logger.warn('clients send their tokens without TLS');
  }
  const http = await listen(app.server, config.http.address);
  const servers: RunningServer[] = [
    http,
    await serveMetrics({
      listen: config.metrics.address,
      metrics,
      // This port has an authorizer of its own, so that invented tokens at one port do not delay the answers of the other.
      authorizer: new Authorizer(client),
      certificates,
      logger,
    }),
    await serveHealth({
      listen: config.health.address,
      live: { process: () => undefined },
      ready: { caches: () => own.watches.unready() },
      logger,
    }),
  ];
  logger.info({ http: config.http.address, metrics: config.metrics.address }, 'listening');
  return {
    stop: async () => {
      await Promise.all([waiting.stop(), http.drain(ANSWER_MILLISECONDS)]);
      ended.abort();
      await Promise.all(servers.map(async (server) => await server.close()));
      await close();
    },
  };
}

function certificateProvider({ http }: ServerConfig): CertificateProvider {
  const { dnsNames } = http;
  return configuredCertificate(http, () =>
    selfMadeCertificate({ commonName: 'berth-server', dnsNames, ipAddresses: ['127.0.0.1'] }),
  );
}
