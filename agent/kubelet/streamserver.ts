/**
 * Serves the streams of machines: `kubectl exec`, `attach` and `port-forward`, and connections over which callers send files to tasks. The
 * HTTPS server has already checked the caller's rights.
 */
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { finished } from 'node:stream/promises';
import type { Logger } from 'pino';
import { Gauge, type Registry } from 'prom-client';
import { TRANSFER_PROTOCOL } from '../../api/v1alpha1/transfer.ts';
import { rest } from '../../base/time.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import type { Upgrade } from '../../kube/serving/upgrades.ts';
import { StreamRefused } from '../drivers/driver.ts';
import { attach, execute, type StreamTarget } from './streams/exec.ts';
import { CommandMemory, OpenLimit } from './limit.ts';
import { forward } from './streams/portforward.ts';
import {
  checkCommand,
  parseStreamRequest,
  type StreamKind,
  type StreamRequest,
} from './streams/streamrequest.ts';
import type { StreamSession, SessionLimits } from './streams/session.ts';
import { ProtocolError } from './streams/spdy/frames.ts';
import * as spdy from './streams/spdy/sessions.ts';
import * as websocket from './streams/websocket.ts';
import type { StreamTargets, TransferSource } from './targets.ts';

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

export interface StreamServerOptions {
  targets: StreamTargets;
  transfers: TransferSource;
  metrics: Registry;
  logger: Logger;
}

export class StreamServer {
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
