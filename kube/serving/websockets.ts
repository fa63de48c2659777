/** Accepts WebSockets of clients. */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { type WebSocket, WebSocketServer } from 'ws';
import { MESSAGE_PARTS } from '../channelprotocol.ts';
import { HttpError } from './httperror.ts';

interface Handshake {
  readonly request: IncomingMessage;
  readonly socket: Duplex;
  /** First bytes that the client sent after the headers of the request. */
  readonly head: Buffer;
}

interface AcceptedOptions {
  /** Protocol that the client has offered. */
  readonly protocol: string;
  /** Limit of one received message in bytes. */
  readonly messageBytes: number;
}

/** Accepts the WebSocket. @throws HttpError 400 when the handshake has a mistake, or the connection is closed. */
export function acceptWebSocket(
  { request, socket, head }: Handshake,
  { protocol, messageBytes }: AcceptedOptions,
): WebSocket {
  const server = new WebSocketServer({
    noServer: true,
    maxPayload: messageBytes,
    maxFragments: MESSAGE_PARTS,
    perMessageDeflate: false,
    clientTracking: false,
    handleProtocols: () => protocol,
  });
  let accepted: WebSocket | undefined;
  server.on('wsClientError', (error) => {
    throw new HttpError(400, error.message);
  });
  // `handleUpgrade` is synchronous. Before it returns, it calls either the callback below or the listener above, which throws an error.
  server.handleUpgrade(request, socket, head, (one) => {
    accepted = one;
  });
  if (accepted === undefined) {
    throw new HttpError(400, 'The connection is closed');
  }
  return accepted;
}

/** Returns the items of a header. It is split only at commas: a pattern that also matches spaces could take seconds for a long header of spaces. */
export function readItems(header: string | string[] | undefined): string[] {
  return String(header ?? '')
    .split(',')
    .map((one) => one.trim());
}
