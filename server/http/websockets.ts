/**
 * Lets routes of the application take WebSockets. The request goes through the application like any other one, so that the rules for every
 * route also hold here: callers, namespaces, answers and the log.
 */
import { type IncomingMessage, type Server, ServerResponse } from 'node:http';
import type { Server as HttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { WebSocket } from 'ws';
import { TOKEN_PROTOCOL, WATCH_PATH } from '../../api/http/consolewatch.ts';
import { acceptWebSocket, readItems } from '../../kube/serving/websockets.ts';
import { StatusError } from './errors.ts';

/** Beginning of the paths of streams. */
export const STREAMS_PATH = '/console/streams/';
/** Beginnings of the paths whose routes take WebSockets. Elsewhere, a request with `Upgrade` is answered like any other request. */
const PATHS = [STREAMS_PATH, WATCH_PATH];
/** Time in milliseconds that a client has to read a refusal and to close the connection. */
const CLOSE_MILLISECONDS = 5_000;

/** Request for a WebSocket. */
export interface WebSocketUpgrade {
  readonly socket: Socket;
  /** First bytes that the client sent after the headers of the request. */
  readonly head: Buffer;
  /** Protocols that the client offers, without the one that carries its token. */
  readonly protocols: readonly string[];
}

const upgrades = new WeakMap<IncomingMessage, WebSocketUpgrade>();

/** Makes the server pass requests for WebSockets to `handle`, which answers all other requests, too. */
export function routeWebSockets(
  server: Server | HttpsServer,
  handle: (request: IncomingMessage, response: ServerResponse) => void,
): void {
  const shouldUpgradeCallback = ({ headers, url }: IncomingMessage): boolean =>
    headers.upgrade?.toLowerCase() === 'websocket' && PATHS.some((path) => url?.startsWith(path) === true);
  Object.assign(server, { shouldUpgradeCallback });
  server.on('upgrade', (request: IncomingMessage, stream: Duplex, head: Buffer) => {
    // The type cast is safe, because the connections of these servers are always TCP or TLS sockets.
    const socket = stream as Socket;
    // Without a listener, an error of the connection would end the process.
    socket.on('error', () => socket.destroy());
    const offered = readItems(request.headers['sec-websocket-protocol']);
    const token = offered.find((one) => one.startsWith(TOKEN_PROTOCOL))?.slice(TOKEN_PROTOCOL.length);
    if (token !== undefined) {
      request.headers.authorization ??= `Bearer ${Buffer.from(token, 'base64url').toString('latin1')}`;
    }
    const protocols = offered.filter((one) => !one.startsWith(TOKEN_PROTOCOL));
    upgrades.set(request, { socket, head, protocols });
    handle(request, responseOver(socket, request));
  });
}

/**
 * Refuses requests of pages from other servers. Such a page has no token, but a browser sends requests for WebSockets for it without asking
 * this server. @throws StatusError 403.
 */
export function refuseOtherOrigins(
  { headers, raw }: FastifyRequest,
  _reply: FastifyReply,
  next: () => void,
): void {
  if (upgrades.has(raw) && URL.parse(headers.origin ?? '')?.host !== headers.host) {
    throw new StatusError(403, 'Only the console of this server opens WebSockets');
  }
  next();
}

/**
 * Returns the request for a WebSocket. The page asks without a WebSocket why its WebSocket was refused, because browsers do not show it.
 *
 * @throws StatusError 426 when the request is for no WebSocket, 400 when the client does not offer the protocol.
 */
export function requireWebSocket(
  { raw }: FastifyRequest,
  reply: FastifyReply,
  protocol: string,
): WebSocketUpgrade {
  const upgrade = upgrades.get(raw);
  if (upgrade === undefined) {
    void reply.header('upgrade', 'websocket');
    throw new StatusError(426, 'This path takes a WebSocket');
  }
  if (!upgrade.protocols.includes(protocol)) {
    throw new StatusError(400, `The client must offer the WebSocket protocol ${protocol}`);
  }
  return upgrade;
}

/**
 * Accepts the WebSocket of a browser. It is not read before `resume` is called, and its end tells of its errors.
 *
 * @throws HttpError 400 when the handshake has a mistake.
 */
export function acceptBrowser(
  { request: { raw }, reply, upgrade }: AcceptedRequest,
  protocol: string,
  messageBytes: number,
): WebSocket {
  const browser = acceptWebSocket({ request: raw, ...upgrade }, { protocol, messageBytes });
  browser.on('error', () => undefined);
  browser.pause();
  reply.hijack();
  reply.raw.statusCode = 101;
  return browser;
}

export interface AcceptedRequest {
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
  readonly upgrade: WebSocketUpgrade;
}

/** Returns the response with which the request is refused. It stays open, and closes with the connection, if the WebSocket is accepted. */
function responseOver(socket: Socket, request: IncomingMessage): ServerResponse {
  const response = new ServerResponse(request);
  // The HTTP parser reads no further request from this connection.
  response.shouldKeepAlive = false;
  response.assignSocket(socket);
  response.once('finish', () => {
    socket.end();
    setTimeout(() => socket.destroy(), CLOSE_MILLISECONDS).unref();
  });
  return response;
}
