/**
 * Limits the connections of a server. Strangers cannot keep others out: a new connection displaces the oldest one that has not yet shown an
 * allowed caller. A connection with an allowed caller is never displaced, but each caller has a limit.
 */
import type { Server } from 'node:http';
import type { Server as HttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import { peerAddress, sourceOf } from '../../base/address.ts';
import { HttpError } from './httperror.ts';

/**
 * Share of the connections that one caller can have, and share that the strangers of one source can have. The address of a proxy has many
 * callers, so the share of strangers is large. They stay strangers only until their first allowed request.
 */
const CALLER_SHARE = 3 / 4;
const SOURCE_SHARE = 1 / 2;

/** Names of service accounts, up to the name of their namespace. */
const SERVICE_ACCOUNT = /^system:serviceaccount:([^:]+):/;

interface Connection {
  readonly socket: Socket;
  /** IPv4 address of the client, or /64 network of its IPv6 address. */
  readonly source: string;
  /** Caller of the connection. It is undefined as long as the connection has shown no allowed caller. */
  caller: string | undefined;
}

/** The limits that apply to each open connection. For TLS, the key is the socket that handlers see, not the one below it. */
const limitsOf = new WeakMap<Socket, ConnectionLimits>();

class ConnectionLimits {
  readonly #limit: number;
  /** Open connections, the oldest first. */
  readonly #open = new Map<string, Connection>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  add(socket: Socket): void {
    const address = peerAddress(socket);
    if (address === undefined) {
      // The client has closed the connection already.
      socket.destroy();
      return;
    }
    const key = keyOf(socket);
    const source = sourceOf(address);
    const connection = { socket, source, caller: undefined };
    this.#open.set(key, connection);
    socket.once('close', () => this.#remove(key, connection));
    const strangers = [...this.#open.values()].filter(({ caller }) => caller === undefined);
    const neighbours = strangers.filter((one) => one.source === source);
    const excess = this.#open.size > this.#limit ? strangers[0] : undefined;
    this.#displace(neighbours.length > this.#limit * SOURCE_SHARE ? neighbours[0] : excess);
  }

  /** @throws HttpError 429 when the caller has too many connections. */
  admit(socket: Socket, caller: string): void {
    const connection = this.#open.get(keyOf(socket));
    if (connection === undefined || connection.caller === caller) {
      return;
    }
    const limit = Math.floor(this.#limit * CALLER_SHARE);
    const own = [...this.#open.values()].filter((one) => one.caller === caller).length;
    if (own >= limit) {
      throw new HttpError(429, `${caller} already has ${limit} connections. Try again later`);
    }
    connection.caller = caller;
  }

  #displace(connection: Connection | undefined): void {
    if (connection !== undefined) {
      // The event `close` comes later. Until then, other connections can arrive, and they must not choose this socket again.
      this.#remove(keyOf(connection.socket), connection);
      connection.socket.destroy();
    }
  }

  #remove(key: string, connection: Connection): void {
    if (this.#open.get(key) === connection) {
      this.#open.delete(key);
    }
  }
}

/** Returns the same text for a TLS socket and for the socket below it. */
function keyOf({ remoteAddress, remotePort, localAddress }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress}`;
}

/** Limits the open connections of a server to `limit`. */
export function limitConnections(server: Server | HttpsServer, limit: number): void {
  const limits = new ConnectionLimits(limit);
  server.on('connection', (socket: Socket) => {
    limitsOf.set(socket, limits);
    limits.add(socket);
  });
  server.on('secureConnection', (socket: Socket) => limitsOf.set(socket, limits));
}

/**
 * Records that a request of an allowed caller arrived on this connection. New connections then no longer displace it. The service accounts
 * of one namespace count as one caller, because its members can create any number of them.
 *
 * @throws HttpError 429 when the caller has too many connections.
 */
export function keepConnection(socket: Socket, username: string): void {
  const namespace = accountNamespaceOf(username);
  const caller = namespace === undefined ? username : `system:serviceaccount:${namespace}`;
  limitsOf.get(socket)?.admit(socket, caller);
}

/** Returns the namespace of a service account. It is undefined for other users. */
export function accountNamespaceOf(username: string): string | undefined {
  return SERVICE_ACCOUNT.exec(username)?.[1];
}
