/** The one way to serve HTTP. Whatever a stranger sends, the answer is a status or a closed connection, and the process stays. */
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer, type Server as HttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { SecureContextOptions, TlsOptions } from 'node:tls';
import type { Logger } from 'pino';

/** For a handshake, and for a whole request. A caller sends one short request; a slower one wants to hold the connection. */
const REQUEST_LIMIT_MILLISECONDS = 10_000;
/** How often the limit above is looked at. A look is a walk over at most {@link CONNECTIONS} connections. */
const LIMIT_LOOK_MILLISECONDS = 1_000;
/** An answer that nobody takes for so long is given up. See {@link holdOpen} for answers that are quiet by their nature. */
const STALL_MILLISECONDS = 30_000;
/** Between two requests of one connection; the default of Node.js. */
const KEEP_ALIVE_MILLISECONDS = 5_000;
/** When the kernel begins to ask whether a quiet peer is still there. */
const TCP_KEEP_ALIVE_MILLISECONDS = 30_000;
/** Scrapers, probes, the API server's streams of logs, and a person; more is an attack. */
const CONNECTIONS = 128;

/** Answers one request. What it throws is logged and answered with 500. `url` has the path and the query as they were asked for. */
export type Handler = (request: IncomingMessage, response: ServerResponse, url: URL) => void | Promise<void>;

/** Thrown by a {@link Handler} for an answer with this status and this message, which is for people. It is not logged. */
export class HttpError extends Error {
  override readonly name: string = 'HttpError';
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export interface RunningServer {
  port: number;
  /** Ends open connections too. */
  close(): Promise<void>;
}

/** @param tls makes an HTTPS server. */
export function createServer(handle: Handler, { logger, tls }: { logger: Logger; tls?: undefined }): Server;
export function createServer(
  handle: Handler,
  { logger, tls }: { logger: Logger; tls: SecureContextOptions & TlsOptions },
): HttpsServer;
export function createServer(
  handle: Handler,
  { logger, tls }: { logger: Logger; tls?: (SecureContextOptions & TlsOptions) | undefined },
): Server | HttpsServer {
  const limits = {
    requestTimeout: REQUEST_LIMIT_MILLISECONDS,
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
  server.maxConnections = CONNECTIONS;
  server.timeout = STALL_MILLISECONDS;
  // There are no listeners for `upgrade` and `connect`: with one, the socket's errors would be ours to catch. An Upgrade is
  // answered as the request that it is, and a CONNECT is closed.
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    void answer(handle, logger, request, response);
  });
  // Without a listener an error of accept(2), such as too many open files, would end the process.
  server.on('error', (error: Error) => logger.error({ err: error }, 'connection not taken'));
  server.on('tlsClientError', (error: Error) => logger.debug({ err: error }, 'TLS handshake failed'));
  return server;
}

/** @param address `host:port`, `[v6]:port` or `:port`, which is every address; port 0 takes a free one. */
export async function listen(server: Server | HttpsServer, address: string): Promise<RunningServer> {
  const { host, port } = parseAddress(address);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once('error', reject);
  server.listen({ port, ...(host === '' ? {} : { host }) }, resolve);
  await promise;
  return {
    port: (server.address() as AddressInfo).port,
    close: async () => {
      const closed = Promise.withResolvers<void>();
      server.close(() => closed.resolve());
      server.closeAllConnections();
      await closed.promise;
    },
  };
}

/** Answers with a text, or breaks off an answer that has already begun. */
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
  response.writeHead(status, {
    'content-type': type,
    'content-length': Buffer.byteLength(text),
    'x-content-type-options': 'nosniff',
  });
  response.end(text);
}

/** For an answer that may be quiet for hours, such as a log that is followed, or that its reader takes page by page. */
export function holdOpen(response: ServerResponse): void {
  response.setTimeout(0);
}

async function answer(
  handle: Handler,
  logger: Logger,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  // Without a listener an error of the connection would end the process.
  response.on('error', (error) => logger.debug({ err: error }, 'an answer was not taken'));
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

/** Resolved against a base, a path such as `//` would be read as the name of a host, and refused. */
function urlOf(target: string): URL | null {
  return URL.parse(target.startsWith('/') ? `http://localhost${target}` : target);
}

/** @throws Error when it is none of `host:port`, `[v6]:port` and `:port`. */
function parseAddress(address: string): { host: string; port: number } {
  const match = /^(?:\[([^\]]+)\]|([^:]*)):(\d{1,5})$/.exec(address);
  const port = Number(match?.[3]);
  if (match === null || port > 65_535) {
    throw new Error(`not an address to listen on (host:port or :port): ${address}`);
  }
  return { host: match[1] ?? match[2] ?? '', port };
}
