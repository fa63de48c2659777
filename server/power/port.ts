/** Starts the power API: a port of its own in the program of the HTTP API. */
import type { Server } from 'node:http';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { KubeClient } from '../../kube/client.ts';
import { Authorizer } from '../../kube/serving/authorization.ts';
import { createServer, type Handler } from '../../kube/serving/httpserver.ts';
import type { ServerConfig } from '../config.ts';
import { WaitingRequests } from '../http/waiting.ts';
import { Occupants, PowerActions } from './actions.ts';
import { PasswordUsers, PowerCallers } from './callers.ts';
import { PowerDocumentation } from './documentation.ts';
import { PowerHandler, powerMetrics, SilentConnections } from './handler.ts';
import { Inventory } from './inventory.ts';
import { Lockouts, SharedFailures } from './lockouts.ts';
import { Passwords, PasswordThread } from './passwords.ts';
import { RequestSources } from './source.ts';

/** Largest number of connections. A thousand of them can be without an answer, and the rest is for callers. */
const CONNECTIONS = 2_048;
/** Largest number of actions that wait for their controllers at the same time. */
const WAITING_ACTIONS = 512;
/** Limits for the questions about callers. Each request asks about its caller, and strangers can send tokens too. */
const KNOWN_CALLERS = { answers: 8_192, questions: 8, waiting: 512 };
const STRANGERS = { answers: 8_192, questions: 4, waiting: 128 };

export interface PowerOptions {
  /** Client with the identity of the HTTP API. */
  readonly client: KubeClient;
  readonly config: ServerConfig;
  readonly logger: Logger;
  readonly metrics: Registry;
}

export interface PowerPort {
  /** The server, which does not listen yet. */
  readonly server: Server;
  /** Requests that wait for a controller. When their waits end, the actions themselves go on. */
  readonly waiting: WaitingRequests;
  /** Starts to watch. The API answers with 503 until everything is read. */
  start(signal: AbortSignal): void;
  /** Returns the reason why the API cannot answer requests yet, or undefined. */
  unready(): string | undefined;
}

/** Creates the power API with all its parts. No connection is open yet. */
export function createPower({ client, config, logger, metrics }: PowerOptions): PowerPort {
  const { power, namespaces } = config;
  const own = { client, logger, namespace: namespaces.system };
  const shared = new SharedFailures({ ...own, rules: power.lockout });
  const users = new PasswordUsers(own);
  const inventory = new Inventory(client, logger);
  const thread = new PasswordThread(logger);
  const passwords = new Passwords(thread);
  const authorizers = {
    known: new Authorizer(client, KNOWN_CALLERS),
    strangers: new Authorizer(client, STRANGERS),
  };
  const lockouts: Lockouts = new Lockouts(power.lockout, shared, () => counted.lockouts.inc());
  const counted = powerMetrics(metrics, {
    lockedSources: () => lockouts.size,
    waitingChecks: () => passwords.waiting,
  });
  const waiting = new WaitingRequests(WAITING_ACTIONS);
  const occupants = new Occupants(client, authorizers.known);
  const handler = new PowerHandler({
    logger,
    sources: new RequestSources(power.trustedProxies),
    lockouts,
    silent: new SilentConnections(),
    callers: new PowerCallers({ authorizers, passwords, users }),
    inventory,
    actions: new PowerActions({ client, inventory, occupants }),
    waiting,
    documentation: new PowerDocumentation(),
    metrics: counted,
  });
  const handle = async (...[request, response]: Parameters<Handler>) =>
    await handler.handle(request, response);
  const options = { logger, connections: CONNECTIONS };
  const server = config.http.tls
    ? createServer(handle, { ...options, tls: {} })
    : createServer(handle, options);
  let isReady = false;
  return {
    server,
    waiting,
    start: (signal) => {
      signal.addEventListener('abort', () => void thread.stop());
      Promise.all([inventory.start(signal), users.start(signal), shared.start(signal)]).then(
        () => {
          isReady = true;
        },
        () => undefined,
      );
    },
    unready: () => (isReady ? undefined : 'the Servers and users of the power API are not read yet'),
  };
}
