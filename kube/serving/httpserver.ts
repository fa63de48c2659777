/** All HTTP servers of Berth use this module. For any input, a client gets a status or a closed connection, and the process continues. */
import { once } from 'node:events';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer, type Server as HttpsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { SecureContextOptions, TlsOptions } from 'node:tls';
import type { Logger } from 'pino';
import { limitConnections } from './connections.ts';
import { HttpError } from './httperror.ts';

/**
 * Time limit in milliseconds for each of these: a TLS handshake, the headers of a request, and the body of a request. Callers send short
 * requests, so a slower caller probably wants to block the connection.
 */
const REQUEST_LIMIT_MILLISECONDS = 10_000;
/**
 * Interval in milliseconds between two checks of the time limit of requests. A check takes little time even for thousands of connections.
 */
const LIMIT_LOOK_MILLISECONDS = 1_000;
/** Time in milliseconds without data after which a connection is closed. {@link holdOpen} removes this limit for one answer. */
const STALL_MILLISECONDS = 30_000;
/** Longest pause in milliseconds between two requests of one connection. Node.js has the same default. */
const KEEP_ALIVE_MILLISECONDS = 5_000;
/** Time in milliseconds without data after which the kernel begins to send TCP keep-alive probes to the peer. */
const TCP_KEEP_ALIVE_MILLISECONDS = 30_000;
/** Status of an answer to a caller whom nobody knows. */
const UNAUTHORIZED = 401;
/**
 * Largest number of connections. It is enough for the 64 logs and 64 streams that the API server can open at the same time, and for
 * scrapers, probes and a person. More connections indicate an attack.
 */
const CONNECTIONS = 192;

/**
 * Function that answers one request. If it throws an error other than HttpError, the error is logged, and the caller gets 500. `url`
 * contains the path and the query of the request.
 */
export type Handler = (request: IncomingMessage, response: ServerResponse, url: URL) => void | Promise<void>;

export interface RunningServer {
  port: number;
  /** Stops the server and immediately closes all connections, including upgraded ones. */
  close(): Promise<void>;
}

export interface ListeningServer extends RunningServer {
  /** Stops accepting connections. Resolves when all answers that have begun are sent, or after the time limit. Call `close` afterwards. */
  drain(limitMilliseconds: number): Promise<void>;
}

interface ServerOptions<Tls> {
  readonly logger: Logger;
  readonly tls?: Tls;
  /** Largest number of connections. */
  readonly connections?: number;
}

/** Creates a server that answers each request with `handle`. If `tls` is set, it is an HTTPS server. */
export function createServer(handle: Handler, options: ServerOptions<undefined>): Server;
export function createServer(
  handle: Handler,
  options: ServerOptions<SecureContextOptions & TlsOptions> & { tls: object },
): HttpsServer;
export function createServer(
  handle: Handler,
  { logger, tls, connections = CONNECTIONS }: ServerOptions<(SecureContextOptions & TlsOptions) | undefined>,
): Server | HttpsServer {
  const limits = {
    // The time limit of Node.js for whole requests is off, because an upload can take hours. `limitBody` limits the time of other bodies.
    requestTimeout: 0,
    headersTimeout: REQUEST_LIMIT_MILLISECONDS,
    connectionsCheckingInterval: LIMIT_LOOK_MILLISECONDS,
    keepAliveTimeout: KEEP_ALIVE_MILLISECONDS,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEP_ALIVE_MILLISECONDS,
  };
  const server =
    tls === undefined
      ? createHttpServer(limits)
      : createHttpsServer({ ...limits, handshakeTimeout: REQUEST_LIMIT_MILLISECONDS, ...tls });
  limitConnections(server, connections);
  server.timeout = STALL_MILLISECONDS;
  // This function adds no listener for `upgrade` (see `upgrades.ts`) or `connect`, because a listener would have to handle the socket's
  // errors. Without a listener, Node.js ignores the header Upgrade of a request, and closes the connection after the method CONNECT.
  const answers = new WeakMap<Socket, ServerResponse>();
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    const { socket } = request;
    // If a client sends a request before it has the answer to its previous request, the server closes the connection. Otherwise Node.js
    // would read such requests without a limit. No client of Berth sends such requests. The check does not use the event `close` of the
    // previous answer, because a fast client can send its next request before that event.
    if (answers.get(socket)?.writableEnded === false) {
      socket.destroy();
      return;
    }
    answers.set(socket, response);
    limitBody(server, request, response);
    void answer(handle, logger, request, response);
  });
  // Without a listener, an error of accept(2) would end the process, for example when too many files are open.
  server.on('error', (error: Error) => logger.error({ err: error }, 'a connection could not be accepted'));
  server.on('tlsClientError', (error: Error) => logger.debug({ err: error }, 'TLS handshake failed'));
  return server;
}

/**
 * Makes a server close each connection after one answer. Call this function before {@link listen} for a port without authentication. Its
 * callers are all strangers, so their connections must not stay open between requests.
 */
export function closeAfterAnswer(server: Server): void {
  // `maxRequestsPerSocket` would only announce the end. Node.js would keep the connection until the pause between requests is too long.
  server.prependListener('request', (_request: IncomingMessage, response: ServerResponse) => {
    response.shouldKeepAlive = false;
  });
}

/** Starts to listen. `address` is `host:port`, `[v6]:port`, or `:port`, which means every address. Port 0 means any free port. */
export async function listen(server: Server | HttpsServer, address: string): Promise<ListeningServer> {
  const { host, port } = parseAddress(address);
  const sockets = openSockets(server);
  const answers = openAnswers(server);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once('error', reject);
  server.listen({ port, ...(host === '' ? {} : { host }) }, resolve);
  await promise;
  return {
    port: (server.address() as AddressInfo).port,
    drain: async (limitMilliseconds) => {
      server.close();
      const signal = AbortSignal.timeout(limitMilliseconds);
      // This loop also waits for answers that begin on open connections during the loop.
      for (const response of answers) {
        await once(response, 'close', { signal }).catch(() => undefined);
      }
    },
    close: async () => {
      const closed = Promise.withResolvers<void>();
      server.close(() => closed.resolve());
      for (const socket of sockets) {
        socket.destroy();
      }
      await closed.promise;
    },
  };
}

/**
 * Returns the open connections of a server, the oldest first, so that `close` can destroy them. `closeAllConnections` does not close
 * upgraded connections or connections without a request, for example a spare connection of the API server. Without this list, `close`
 * would wait for such connections until their time limits are over.
 */
function openSockets(server: Server | HttpsServer): Set<Socket> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  return sockets;
}

/** Returns the answers that a server has not completely sent. */
function openAnswers(server: Server | HttpsServer): ReadonlySet<ServerResponse> {
  const answers = new Set<ServerResponse>();
  server.on('request', (_request: IncomingMessage, response: ServerResponse) => {
    answers.add(response);
    response.once('close', () => answers.delete(response));
  });
  return answers;
}

/** Sends a text as the answer. If another answer has already begun, that answer is aborted. */
export function reply(
  response: ServerResponse,
  status: number,
  text: string,
  type = 'text/plain; charset=utf-8',
): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  if (status === UNAUTHORIZED) {
    // A caller who has shown nothing gets no second request on this connection.
    response.shouldKeepAlive = false;
  }
  response.writeHead(status, {
    'content-type': type,
    'content-length': Buffer.byteLength(text),
    'x-content-type-options': 'nosniff',
  });
  response.end(text);
}

/** Removes the time limit of an answer whose data can pause for hours, for example a log that is followed or read page by page. */
export function holdOpen(response: ServerResponse): void {
  response.setTimeout(0);
}

/** Requests whose bodies have no time limit. */
const uploads = new WeakSet<IncomingMessage>();

/**
 * Removes the time limit for the body of this request, for example an upload that takes hours. The handler must end the request if no data
 * arrives for too long. When the answer has been sent, the rest of the body has a time limit again.
 */
export function allowLongBody(request: IncomingMessage, response: ServerResponse): void {
  uploads.add(request);
  response.once('finish', () => {
    // If the answer was sent before the whole body of the request arrived, the connection is closed after the time limit. Until then, the
    // client can read the answer.
    setTimeout(() => request.complete || request.socket.destroy(), REQUEST_LIMIT_MILLISECONDS).unref();
  });
}

/**
 * Refuses a request if its body takes too long to arrive. The server's listener for `clientError` sends the answer, as it does when a time
 * limit of Node.js has passed. If the server has no such listener, the connection is closed without an answer.
 */
function limitBody(server: Server | HttpsServer, request: IncomingMessage, response: ServerResponse): void {
  const { 'content-length': length = '0', 'transfer-encoding': encoding } = request.headers;
  if (length === '0' && encoding === undefined) {
    return;
  }
  const { socket } = request;
  const timer = setTimeout(() => {
    if (request.complete || uploads.has(request)) {
      return;
    }
    const error = Object.assign(new Error('Request timeout'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' });
    // If an answer has already begun, the server cannot send another one.
    if (response.headersSent || !server.emit('clientError', error, socket)) {
      socket.destroy();
    }
  }, REQUEST_LIMIT_MILLISECONDS).unref();
  response.once('close', () => {
    // If the answer was sent before the whole body of the request arrived, the time limit still applies to the rest of the body.
    if (request.complete || socket.destroyed) {
      clearTimeout(timer);
    }
  });
}

async function answer(
  handle: Handler,
  logger: Logger,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  // Without a listener, an error of the connection would end the process.
  response.on('error', (error) =>
    logger.debug({ err: error }, 'the connection failed while an answer was sent'),
  );
  const url = urlOf(request.url ?? '/');
  if (url === null) {
    reply(response, 400, 'Bad Request');
    return;
  }
  try {
    await handle(request, response, url);
  } catch (error) {
    if (error instanceof HttpError) {
      reply(response, error.status, `${error.message}\n`);
      return;
    }
    logger.error({ err: error, path: url.pathname }, 'request failed');
    reply(response, 500, 'Internal Server Error');
  }
}

/**
 * Parses the target of a request: a path or a URL. The path is not resolved against a base URL, because `//a` would then mean the host `a`.
 */
export function urlOf(target: string): URL | null {
  return URL.parse(target.startsWith('/') ? `http://localhost${target}` : target);
}

/** Splits an address into host and port. @throws Error when the text is not `host:port`, `[v6]:port` or `:port`. */
function parseAddress(address: string): { host: string; port: number } {
  const match = /^(?:\[([^\]]+)\]|([^:]*)):(\d{1,5})$/.exec(address);
  const port = Number(match?.[3]);
  if (match === null || port > 65_535) {
    throw new Error(`not an address to listen on (host:port or :port): ${address}`);
  }
  return { host: match[1] ?? match[2] ?? '', port };
}
