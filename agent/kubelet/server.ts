/**
 * Serves the HTTPS endpoints of a kubelet: logs of machines, metrics, `/readyz`, and streams. Streams are `kubectl exec`, `attach` and
 * `port-forward`, and connections over which callers send files to tasks.
 */
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Server } from 'node:https';
import { isIPv6, type Socket } from 'node:net';
import { Readable, type Duplex } from 'node:stream';
import { pipeline, finished } from 'node:stream/promises';
import { isDeepStrictEqual } from 'node:util';
import type { Logger } from 'pino';
import { type Registry, Gauge } from 'prom-client';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import { type Certificate, parseValidity } from '../../kube/certificates/certificate.ts';
import { keepConnection } from '../../kube/serving/connections.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { createServer, holdOpen, listen, reply, type RunningServer } from '../../kube/serving/httpserver.ts';
import { acceptUpgrades, type Upgrade } from '../../kube/serving/upgrades.ts';
import { useCertificate } from '../../kube/certificates/serving.ts';
import { OpenLimit, CommandMemory } from './limit.ts';
import { type LogSource, parseLogRequest, type StreamTargets, type TransferSource } from './targets.ts';
import { RESOURCE_CONTENT_TYPE, type ResourceMetrics } from './resources.ts';
import {
  isStreamKind,
  checkCommand,
  parseStreamRequest,
  type StreamKind,
  type StreamRequest,
} from './streams/streamrequest.ts';
import { TRANSFER_PROTOCOL } from '../../api/v1alpha1/transfer.ts';
import { rest } from '../../base/time.ts';
import { StreamRefused } from '../drivers/driver.ts';
import { attach, execute, type StreamTarget } from './streams/exec.ts';
import { forward } from './streams/portforward.ts';
import type { StreamSession, SessionLimits } from './streams/session.ts';
import { ProtocolError } from './streams/spdy/frames.ts';
import * as spdy from './streams/spdy/sessions.ts';
import * as websocket from './streams/websocket.ts';

/** Time between two reads of the file with the authorities of callers. A kubelet reads its file as often. */
const LOOK_MILLISECONDS = 60_000;

/** Subresource of the Node for which a caller needs a permission: `metrics` for the metrics, or `proxy` for all access to machines. */
type Subresource = 'proxy' | 'metrics';

interface KubeletServerOptions {
  nodeName: string;
  listenAddress: string;
  port: number;
  /** File with the certificate authority that signed the API server's client certificate. The server follows changes of the file. */
  clientCAFile: string | undefined;
  certificate: Certificate;
  authorizer: Authorizer;
  logs: LogSource;
  streams: StreamTargets;
  transfers: TransferSource;
  /**
   * Returns the reason why a joined host accepts no VMs, or undefined if the host accepts VMs. The reason must contain no secret, because
   * every caller can read it.
   */
  unready: () => string | undefined;
  metrics: Registry;
  resources: Pick<ResourceMetrics, 'text'>;
  logger: Logger;
}

interface Route {
  subresource: Subresource;
  /** Serves a request. The signal aborts when the caller has closed the connection. */
  serve: (url: URL, response: ServerResponse, signal: AbortSignal) => Promise<void>;
}

export class KubeletServer {
  /** Whether the host has joined the cluster. The server also answers before that, but `/readyz` reports a fault until that moment. */
  hasJoined = false;
  readonly #options: KubeletServerOptions;
  readonly #server: Server;
  readonly #readers = new OpenLimit('logs');
  readonly #streams: StreamServer;
  #certificate: Certificate;
  /** The authorities in use. */
  #authorities: Buffer[];
  #look: NodeJS.Timeout | undefined;
  #running: RunningServer | undefined;

  constructor(options: KubeletServerOptions) {
    this.#options = options;
    const { certificate, clientCAFile, streams: targets, transfers, metrics, logger } = options;
    this.#streams = new StreamServer({ targets, transfers, metrics, logger });
    this.#server = createServer((request, response, url) => this.#handle(request, response, url), {
      logger,
      // TLS accepts callers without a valid certificate, because they can have a token. Each request is checked later.
      tls: { requestCert: true, rejectUnauthorized: false },
    });
    acceptUpgrades(this.#server, (upgrade) => this.#upgrade(upgrade), logger);
    this.#certificate = certificate;
    this.#authorities = authoritiesIn(clientCAFile);
    this.#use(this.#certificate, this.#authorities);
  }

  /** Starts to listen and returns the port. */
  async listen(): Promise<number> {
    const { listenAddress, port } = this.#options;
    const host = isIPv6(listenAddress) ? `[${listenAddress}]` : listenAddress;
    this.#running = await listen(this.#server, `${host}:${port}`);
    this.#look = setInterval(() => this.#followAuthorities(), LOOK_MILLISECONDS).unref();
    return this.#running.port;
  }

  /** Replaces the certificate for new connections. */
  replaceCertificate(certificate: Certificate): void {
    this.#use(certificate, this.#authorities);
  }

  #use(certificate: Certificate, authorities: Buffer[]): void {
    useCertificate(this.#server, certificate, authorities);
    this.#certificate = certificate;
    this.#authorities = authorities;
  }

  /**
   * Uses changed authorities for new connections. While their file cannot be read, or has no certificate, the server keeps the authorities in
   * use.
   */
  #followAuthorities(): void {
    try {
      const authorities = authoritiesIn(this.#options.clientCAFile);
      if (!isDeepStrictEqual(authorities, this.#authorities)) {
        for (const file of authorities) {
          // This call throws if the file has no certificate.
          parseValidity(file.toString());
        }
        this.#use(this.#certificate, authorities);
      }
    } catch (error) {
      this.#options.logger.error({ err: error }, 'The certificate authorities of clients could not be read');
    }
  }

  async close(): Promise<void> {
    clearInterval(this.#look);
    await this.#streams.close();
    await this.#running?.close();
  }

  async #handle(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const closed = new AbortController();
    response.on('close', () => closed.abort());
    try {
      await this.#answer(request, response, url, closed.signal);
    } catch (error) {
      // If the caller has closed the connection, nobody needs the error.
      if (!closed.signal.aborted) {
        throw error;
      }
    }
  }

  async #answer(
    request: IncomingMessage,
    response: ServerResponse,
    url: URL,
    signal: AbortSignal,
  ): Promise<void> {
    if (url.pathname === '/readyz') {
      const reason = this.hasJoined ? this.#options.unready() : 'This host has not joined the cluster yet';
      endWith(response, reason === undefined ? 200 : 503, reason ?? 'ok');
      return;
    }
    const route = this.#route(url.pathname);
    if (route === undefined) {
      endWith(response, 404, 'not found');
      return;
    }
    await this.#admit(request, route.subresource, request.method === 'POST' ? 'create' : 'get');
    await route.serve(url, response, signal);
  }

  /**
   * Checks the identity and the permission of the caller. @throws HttpError 401 when the caller has neither a certificate of a trusted
   * authority nor a token that a TokenReview accepts; HttpError 403 when the caller has no permission.
   */
  async #admit(request: IncomingMessage, subresource: Subresource, verb: 'create' | 'get'): Promise<void> {
    const { authorizer, nodeName } = this.#options;
    const user = await authorizer.identify(request);
    if (user === undefined) {
      throw new HttpError(401, 'Unauthorized');
    }
    const resourceAttributes = { verb, version: 'v1', resource: 'nodes', subresource, name: nodeName };
    if (await authorizer.authorize(user, { resourceAttributes })) {
      keepConnection(request.socket, user.username ?? '');
      return;
    }
    const what = `user=${user.username}, verb=${verb}, resource=nodes, subresource=${subresource}`;
    throw new HttpError(403, `Forbidden (${what})`);
  }

  /** Serves a stream. The caller needs the permission `create`, even for a GET request, because all WebSocket clients send GET. */
  async #upgrade(upgrade: Upgrade): Promise<void> {
    const [, kind = ''] = upgrade.url.pathname.split('/');
    if (!isStreamKind(kind)) {
      throw new HttpError(400, 'A request to this path cannot upgrade the connection');
    }
    await this.#admit(upgrade.request, 'proxy', 'create');
    await this.#streams.serve(kind, upgrade);
  }

  #route(path: string): Route | undefined {
    // A kubelet has other metrics below /metrics. Programs that read them must not get the metrics of the agent again.
    if (path === '/metrics') {
      return { subresource: 'metrics', serve: (_, response) => this.#metrics(response) };
    }
    if (path === '/metrics/resource') {
      return { subresource: 'metrics', serve: (_, response) => this.#resources(response) };
    }
    const [, verb = ''] = path.split('/');
    switch (verb) {
      case 'containerLogs':
        return { subresource: 'proxy', serve: (url, response, signal) => this.#logs(url, response, signal) };
      case 'exec':
      case 'attach':
      case 'portForward':
        return {
          subresource: 'proxy',
          serve: async (_, response) => endWith(response, 400, `${verb} needs an upgrade of the connection`),
        };
      default:
        return undefined;
    }
  }

  async #logs(url: URL, response: ServerResponse, signal: AbortSignal): Promise<void> {
    const asked = parseLogRequest(url, Date.now());
    await this.#readers.count(asked.namespace, asked.pod, async () => {
      const lines = await this.#options.logs(asked, signal);
      response.writeHead(200, { 'Content-Type': 'text/plain; charset=utf-8' });
      // The headers are sent at once, so that the caller knows that the log is open. A quiet console can send nothing for a long time.
      holdOpen(response);
      response.flushHeaders();
      await pipeline(Readable.from(lines), response, { signal });
    });
  }

  async #metrics(response: ServerResponse): Promise<void> {
    const { metrics } = this.#options;
    const text = await metrics.metrics();
    response.writeHead(200, { 'Content-Type': metrics.contentType });
    response.end(text);
  }

  async #resources(response: ServerResponse): Promise<void> {
    const text = await this.#options.resources.text();
    response.writeHead(200, { 'Content-Type': RESOURCE_CONTENT_TYPE });
    response.end(text);
  }
}

/**
 * Returns the certificate authorities for callers' certificates. If no file is configured, the list is empty. The result is never
 * undefined, because Node.js trusts the public authorities if the list is undefined.
 */
function authoritiesIn(file: string | undefined): Buffer[] {
  return file === undefined ? [] : [readFileSync(file)];
}

/** Sends a text for a person, and ends the response. */
function endWith(response: ServerResponse, status: number, text: string): void {
  reply(response, status, `${text}\n`);
}

/**
 * Time without data after which a stream ends, in milliseconds. Such a stream ends because its caller has probably forgotten it. A
 * forgotten stream would block the input of a console for other callers, or keep connections of a guest open.
 */
const IDLE_MILLISECONDS = 30 * 60_000;
/**
 * Limit of open connections in one session of `port-forward`. This is enough for a browser, which opens 6 connections for each host name,
 * and for a load test with dozens of connections.
 */
const CONNECTIONS = 64;

/**
 * Time within which clients must close their streams when the agent ends. Clients that receive the message about the end close their
 * streams at once. Other clients notice the end only by a ping, for example kubectl after 10 s. The agent does not wait for these clients,
 * because the next agent must start soon.
 */
const END_MILLISECONDS = 1_000;

/** Answer that accepts a connection over which a caller sends a file to a task. */
const ACCEPTED = `HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ${TRANSFER_PROTOCOL}\r\n\r\n`;

interface StreamServerOptions {
  targets: StreamTargets;
  transfers: TransferSource;
  metrics: Registry;
  logger: Logger;
}

/** Serves the streams of machines. The HTTPS server has already checked the caller's rights. */
class StreamServer {
  readonly #options: StreamServerOptions;
  readonly #open = new OpenLimit('streams');
  readonly #memory = new CommandMemory();
  readonly #gauge: Gauge<'kind'>;
  readonly #stop = new AbortController();
  readonly #limits: SessionLimits = {
    idleMilliseconds: IDLE_MILLISECONDS,
    connections: CONNECTIONS,
    stop: this.#stop.signal,
  };
  /** One promise for each connection, which resolves when the connection is closed. */
  readonly #connections = new Set<Promise<void>>();

  constructor(options: StreamServerOptions) {
    this.#options = options;
    this.#gauge = new Gauge({
      name: 'berth_agent_streams',
      help: 'Number of open streams between callers and machines: exec, attach and port-forward',
      labelNames: ['kind'] as const,
      registers: [options.metrics],
    });
  }

  /** Ends all streams, and tells their callers the reason. Resolves when their connections are closed, or after 1 s. */
  async close(): Promise<void> {
    this.#stop.abort(
      new Error('The agent of this host is stopping, but the VMs continue to run; connect again'),
    );
    const enough = new AbortController();
    await Promise.race([Promise.all(this.#connections), rest(END_MILLISECONDS, enough.signal)]);
    enough.abort();
  }

  /** Serves one stream until its end. @throws HttpError when the stream is refused, with a text for the caller. */
  async serve(kind: StreamKind, upgrade: Upgrade): Promise<void> {
    const request = parseStreamRequest(kind, upgrade.url);
    const run = isTransfer(request, upgrade)
      ? this.#transfer(request, upgrade)
      : this.#stream(request, upgrade);
    await this.#open.count(request.namespace, request.pod, async () => {
      this.#gauge.inc({ kind });
      this.#follow(upgrade.socket);
      try {
        await run();
      } finally {
        this.#gauge.dec({ kind });
      }
    });
  }

  #follow(socket: Duplex): void {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#connections.add(promise);
    socket.once('close', () => {
      this.#connections.delete(promise);
      resolve();
    });
  }

  #transfer(request: StreamRequest, upgrade: Upgrade): () => Promise<void> {
    const take = this.#options.transfers(request);
    return async () => await transfer(upgrade, take, this.#stop.signal);
  }

  #stream(request: StreamRequest, upgrade: Upgrade): () => Promise<void> {
    const target = this.#options.targets(request);
    checkCommand(request);
    return async () => await this.#run(request, target, upgrade);
  }

  async #run(request: StreamRequest, target: StreamTarget, upgrade: Upgrade): Promise<void> {
    const session = await this.#start(request, target, upgrade);
    const { kind, pod } = request;
    const { reason } = session.signal;
    if (reason instanceof ProtocolError) {
      this.#options.logger.warn({ err: reason, kind, pod }, 'a client of a stream broke the protocol');
    }
  }

  async #start(request: StreamRequest, target: StreamTarget, upgrade: Upgrade): Promise<StreamSession> {
    switch (request.kind) {
      case 'portForward':
        return await this.#forward(target, upgrade);
      case 'exec': {
        const session = await protocolOf(upgrade).acceptCommand(upgrade, request.streams, this.#limits);
        await this.#memory.use(
          request.namespace,
          async (reserve) => await execute(session, target, request.command, reserve),
        );
        return session;
      }
      default:
        return await this.#attach(request, target, upgrade);
    }
  }

  async #forward(target: StreamTarget, upgrade: Upgrade): Promise<StreamSession> {
    const { logger } = this.#options;
    const open = async (port: number): Promise<Duplex> => await target.port(port);
    const session = protocolOf(upgrade).acceptPorts(
      upgrade,
      this.#limits,
      (one) => void forward(open, one, logger),
    );
    await session.ended;
    return session;
  }

  async #attach(request: StreamRequest, target: StreamTarget, upgrade: Upgrade): Promise<StreamSession> {
    // The console is opened before the stream is accepted. So a refusal becomes the answer to the request, which kubectl shows.
    const console = await openConsole(target, request.streams.stdin);
    try {
      const session = await protocolOf(upgrade).acceptCommand(upgrade, request.streams, this.#limits);
      await attach(session, console, { name: request.pod, tty: request.tty });
      return session;
    } finally {
      console.destroy();
    }
  }
}

/** Connects to the console of a machine. @throws HttpError 400 when the machine refuses the connection. */
async function openConsole(target: StreamTarget, input: boolean): Promise<Duplex> {
  try {
    const console = await target.console(input);
    // The pipeline from the console to the caller reports the console's errors. Without this listener, an error before the pipeline exists
    // would end the agent.
    console.on('error', () => undefined);
    return console;
  } catch (error) {
    if (error instanceof StreamRefused) {
      throw new HttpError(400, error.message);
    }
    throw error;
  }
}

/** Returns the protocol that the client asks for: SPDY/3.1, or WebSockets. @throws HttpError 400 for any other protocol. */
function protocolOf({ request }: Upgrade): typeof spdy | typeof websocket {
  switch (request.headers.upgrade?.toLowerCase()) {
    case 'spdy/3.1':
      return spdy;
    case 'websocket':
      return websocket;
    default:
      throw new HttpError(400, 'A connection can be upgraded only to SPDY/3.1 or websocket');
  }
}

/** Returns whether the caller sends a file to a task (a Job's work). Such a request is an `attach` with an upgrade to Berth's protocol. */
function isTransfer({ kind }: StreamRequest, { request }: Upgrade): boolean {
  return kind === 'attach' && request.headers.upgrade?.toLowerCase() === TRANSFER_PROTOCOL;
}

/**
 * Passes the connection to `take`, and resolves when the connection is closed. `take` throws an HttpError if no task waits for a
 * connection.
 */
async function transfer(
  { socket, head }: Upgrade,
  take: (caller: Socket) => void,
  stop: AbortSignal,
): Promise<void> {
  // `head` contains the first bytes of the connection. These bytes are put back before any other read, so that `take` gets all bytes.
  socket.unshift(head);
  // The socket needs no time limit here, because `take` sets its own limit.
  socket.setTimeout(0);
  take(socket);
  socket.write(ACCEPTED);
  const onStop = (): void => void socket.destroy();
  stop.addEventListener('abort', onStop, { once: true });
  // `take` handles the errors of the connection, so they are ignored here.
  await finished(socket).catch(() => undefined);
  stop.removeEventListener('abort', onStop);
}
