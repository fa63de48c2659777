/**
 * Lets routes of the application take WebSockets. The request goes through the application like any other one, so that the rules for every
 * route also hold here: callers, namespaces, answers and the log.
 */
import { type IncomingMessage, type Server, ServerResponse } from 'node:http';
import type { Server as HttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';

/** Beginning of the paths whose routes take WebSockets. Elsewhere, a request with `Upgrade` is answered like any other request. */
export const STREAMS_PATH = '/console/streams/';
/**
 * Beginning of the protocol with which a browser sends a bearer token, because it can set no other header of a WebSocket. The rest of the
 * protocol is the token, encoded as base64url without padding. API servers take it, too.
 */
const TOKEN_PROTOCOL = 'base64url.bearer.authorization.k8s.io.';
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
    headers.upgrade?.toLowerCase() === 'websocket' && (url ?? '').startsWith(STREAMS_PATH);
  Object.assign(server, { shouldUpgradeCallback });
  server.on('upgrade', (request: IncomingMessage, stream: Duplex, head: Buffer) => {
    // The type cast is safe, because the connections of these servers are always TCP or TLS sockets.
    const socket = stream as Socket;
    // Without a listener, an error of the connection would end the process.
    socket.on('error', () => socket.destroy());
    // The header is split only at commas, because a pattern that also matches spaces could take seconds for a long header of spaces.
    const offered = (request.headers['sec-websocket-protocol'] ?? '').split(',').map((one) => one.trim());
    const token = offered.find((one) => one.startsWith(TOKEN_PROTOCOL))?.slice(TOKEN_PROTOCOL.length);
    if (token !== undefined) {
      request.headers.authorization ??= `Bearer ${Buffer.from(token, 'base64url').toString('latin1')}`;
    }
    const protocols = offered.filter((one) => !one.startsWith(TOKEN_PROTOCOL));
    upgrades.set(request, { socket, head, protocols });
    handle(request, responseOver(socket, request));
  });
}

/** Returns what is needed to accept the WebSocket. It is undefined for other requests. */
export function upgradeOf(request: IncomingMessage): WebSocketUpgrade | undefined {
  return upgrades.get(request);
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
