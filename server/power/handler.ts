/**
 * The power API: a port of its own in the program of the HTTP API. It answers requests: who sent it, what it asks for, and the answer in the
 * forms of the promise.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse, Server } from 'node:http';
import type { Socket } from 'node:net';
import type { Logger } from 'pino';
import { Counter, Gauge, type Registry } from 'prom-client';
import { isUnreachable } from '../../kube/errors.ts';
import { keepConnection } from '../../kube/serving/connections.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { reply, createServer, type Handler } from '../../kube/serving/httpserver.ts';
import { UnreadAnswers } from '../http/answers.ts';
import { OwnRefusalError } from '../http/errors.ts';
import { WaitEnd, WaitingRequests } from '../http/waiting.ts';
import { PowerActions, Occupants } from './actions.ts';
import { type PowerCaller, PowerCallers, SignInError, PasswordUsers } from './callers.ts';
import { PowerDocumentation } from './documentation.ts';
import { Inventory, serverRecord } from './inventory.ts';
import { Lockouts, SharedFailures } from './lockouts.ts';
import { parsePowerTarget, partsOfTarget, type PowerTarget } from './path.ts';
import { RequestSources } from './source.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Authorizer } from '../../kube/serving/authorization.ts';
import type { ServerConfig } from '../config.ts';
import { Passwords, PasswordThread } from './passwords.ts';

/** Answer to a successful action. It has four letters and no line end. */
const TRUE = 'True';
const JSON_TYPE = 'application/json';
/** Ways of signing in. A realm is text for people. */
const CHALLENGES = ['Basic realm="Berth", charset="UTF-8"', 'Bearer realm="Berth"'];
/** Number of seconds after which a client should try again when too much is under way, or when the API server does not answer. */
const RETRY_AFTER_SECONDS = 5;

interface PowerHandlerOptions {
  readonly logger: Logger;
  readonly sources: RequestSources;
  readonly lockouts: Lockouts;
  readonly silent: SilentConnections;
  readonly callers: PowerCallers;
  readonly inventory: Inventory;
  readonly actions: PowerActions;
  readonly waiting: WaitingRequests;
  readonly documentation: PowerDocumentation;
  readonly metrics: PowerMetrics;
}

interface Answer {
  readonly text: string;
  readonly type?: string;
}

class PowerHandler {
  readonly #o: PowerHandlerOptions;
  readonly #unread = new UnreadAnswers();

  constructor(o: PowerHandlerOptions) {
    this.#o = o;
  }

  /** Answers a request. A request of a locked-out source gets no answer. */
  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const source = this.#o.sources.of(request);
    if (source === undefined) {
      request.socket.destroy();
      return;
    }
    if (this.#o.lockouts.isLocked(source)) {
      this.#keepSilent(request);
      return;
    }
    response.setHeader('cache-control', 'no-store');
    try {
      const parts = this.#admit(request, response);
      if (!(await this.#o.documentation.answer(parts, response))) {
        await this.#answer(request, response, { parts, source });
      }
    } catch (error) {
      await this.#refuse(request, response, { error, source });
    }
  }

  /** @throws HttpError when the request has another method than GET, is sent in advance, or has a malformed path. */
  #admit(request: IncomingMessage, response: ServerResponse): string[] {
    if (request.method !== 'GET') {
      response.setHeader('allow', 'GET');
      throw new HttpError(405, 'The only method of the power API is GET');
    }
    refuseUnasked(request.headers);
    return partsOfTarget(request.url ?? '/');
  }

  async #answer(
    request: IncomingMessage,
    response: ServerResponse,
    { parts, source }: { parts: readonly string[]; source: string },
  ): Promise<void> {
    const { lockouts, callers, metrics } = this.#o;
    const caller = await callers.identify(request, source, () => !lockouts.isLocked(source));
    if (lockouts.isLocked(source)) {
      this.#keepSilent(request);
      return;
    }
    keepConnection(request.socket, caller.name);
    const target = parsePowerTarget(parts);
    const { text, type } = await this.#read(target, caller, response);
    await this.#unread.add(response, text, async () => await Promise.resolve(caller.name));
    metrics.requests.inc({ request: target.kind, code: 200 });
    reply(response, 200, text, type);
  }

  async #read(target: PowerTarget, caller: PowerCaller, response: ServerResponse): Promise<Answer> {
    const { callers, inventory } = this.#o;
    if (target.kind === 'list') {
      await callers.require(caller, { verb: 'list' });
      return { text: inventory.list(), type: JSON_TYPE };
    }
    const server = inventory.find(target.id);
    // A caller without rights does not learn which Servers exist.
    const object = server === undefined ? {} : { name: server.metadata.name };
    const right =
      target.kind === 'action'
        ? ({ verb: 'create', subresource: 'power' } as const)
        : ({ verb: 'get' } as const);
    await callers.require(caller, { ...right, ...object });
    if (server === undefined) {
      throw new HttpError(404, 'No server has this id or IP address');
    }
    if (target.kind === 'server') {
      return { text: JSON.stringify(serverRecord(server)), type: JSON_TYPE };
    }
    await this.#o.waiting.run(response, { user: caller.name }, async ({ signal }) => {
      await this.#o.actions.perform(server, target.action, caller, signal);
    });
    this.#o.logger.info(
      { server: server.metadata.name, action: target.action, username: caller.name },
      'Power action accepted',
    );
    return { text: TRUE };
  }

  /** Answers with an error on one line. A failed sign-in is counted first, and can be the one after which there is no answer. */
  async #refuse(
    request: IncomingMessage,
    response: ServerResponse,
    { error, source }: { error: unknown; source: string },
  ): Promise<void> {
    if (error instanceof SignInError && !(await this.#o.lockouts.fail(source))) {
      this.#keepSilent(request);
      return;
    }
    const { status, text } = this.#describe(error);
    if (status === 401) {
      response.setHeader('www-authenticate', CHALLENGES);
    }
    if (status === 503) {
      response.setHeader('retry-after', RETRY_AFTER_SECONDS);
    }
    this.#o.metrics.requests.inc({ request: 'refused', code: status });
    reply(response, status, text);
  }

  #describe(error: unknown): { status: number; text: string } {
    if (error instanceof HttpError) {
      // Only a request that the Kubernetes API would have refused has too many of something. Clients of the power API know 503.
      return { status: error.status === 429 ? 503 : error.status, text: oneLine(error.message) };
    }
    if (error instanceof WaitEnd) {
      return { status: 503, text: 'The power API is stopping. The action goes on. Try again' };
    }
    if (error instanceof OwnRefusalError) {
      this.#o.logger.error({ err: error }, 'the API server refuses the account of the HTTP API');
      return { status: 503, text: 'The Kubernetes API server refuses the account of the HTTP API' };
    }
    if (isUnreachable(error)) {
      return { status: 503, text: 'The Kubernetes API server does not answer. Try again later' };
    }
    this.#o.logger.error({ err: error }, 'request to the power API failed');
    return { status: 500, text: 'Internal error' };
  }

  #keepSilent(request: IncomingMessage): void {
    this.#o.metrics.requests.inc({ request: 'refused', code: 'none' });
    this.#o.silent.keep(request.socket);
  }
}

/** Returns the text on one line. */
function oneLine(text: string): string {
  return text.replaceAll(/\s+/g, ' ').trim();
}

/** Headers with which browsers and proxies mark requests that they send in advance. */
const PURPOSES = ['sec-purpose', 'purpose', 'x-purpose', 'x-moz'] as const;
const IN_ADVANCE = /prefetch|prerender|preview/i;

/**
 * Refuses a request that a program sends in advance, with 403: it is refused for good, and the same request of a person has no such header.
 * Also refuses a request that a proxy took from the early data of TLS (RFC 8470), because somebody else can send such data again.
 *
 * @throws HttpError 403 or 425.
 */
function refuseUnasked(headers: IncomingHttpHeaders): void {
  if (PURPOSES.some((name) => IN_ADVANCE.test(String(headers[name] ?? '')))) {
    throw new HttpError(403, 'The power API does not answer requests that are sent in advance (prefetch)');
  }
  if (headers['early-data'] !== undefined) {
    throw new HttpError(425, 'The power API does not answer requests from the early data of TLS');
  }
}

/**
 * Time in milliseconds for which such a connection stays open. A program that guesses passwords waits for this time, and a person sees that
 * the server is there.
 */
const SILENCE_MILLISECONDS = 30_000;
/** Largest number of such connections. Others are closed at once, the oldest first. */
const SILENT_CONNECTIONS = 1_000;

export class SilentConnections {
  readonly #open = new Set<Socket>();

  /** Keeps the connection without an answer, and closes it after a time. */
  keep(socket: Socket): void {
    if (socket.destroyed || this.#open.has(socket)) {
      return;
    }
    this.#open.add(socket);
    const timer = setTimeout(() => socket.destroy(), SILENCE_MILLISECONDS).unref();
    socket.once('close', () => {
      clearTimeout(timer);
      this.#open.delete(socket);
    });
    const [oldest] = this.#open;
    if (oldest !== undefined && this.#open.size > SILENT_CONNECTIONS) {
      this.#open.delete(oldest);
      oldest.destroy();
    }
  }
}

type PowerMetrics = ReturnType<typeof powerMetrics>;

/** Declares the metrics. `lockedSources` and `waitingChecks` return the present numbers. */
function powerMetrics(
  registry: Registry,
  { lockedSources, waitingChecks }: { lockedSources: () => number; waitingChecks: () => number },
) {
  const registers = [registry];
  // oxlint-disable-next-line no-new -- The registry keeps the gauge.
  new Gauge({
    name: 'berth_power_locked_sources',
    help: 'Sources that get no answer from the power API, because of too many failed sign-ins',
    registers,
    collect() {
      this.set(lockedSources());
    },
  });
  // oxlint-disable-next-line no-new -- The registry keeps the gauge.
  new Gauge({
    name: 'berth_power_waiting_password_checks',
    help: 'Passwords of callers of the power API that wait to be checked',
    registers,
    collect() {
      this.set(waitingChecks());
    },
  });
  return {
    requests: new Counter({
      name: 'berth_power_requests_total',
      help: 'Requests to the power API, by kind of request and status code of the answer (none for a locked-out source)',
      labelNames: ['request', 'code'] as const,
      registers,
    }),
    lockouts: new Counter({
      name: 'berth_power_lockouts_total',
      help: 'Sources that this replica of the power API has locked out',
      registers,
    }),
  };
}

/** Largest number of connections. A thousand of them can be without an answer, and the rest is for callers. */
const CONNECTIONS = 2_048;
/** Largest number of actions that wait for their controllers at the same time. */
const WAITING_ACTIONS = 512;
/** Limits for the questions about callers. Each request asks about its caller, and strangers can send tokens too. */
const KNOWN_CALLERS = { answers: 8_192, questions: 8, waiting: 512 };
const STRANGERS = { answers: 8_192, questions: 4, waiting: 128 };

interface PowerOptions {
  /** Client with the identity of the HTTP API. */
  readonly client: KubeClient;
  readonly config: ServerConfig;
  readonly logger: Logger;
  readonly metrics: Registry;
}

interface PowerPort {
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
