/** Creates connections to one API server. */
import { Pool } from 'undici';
import type { Proxy } from '../base/proxy.ts';
import { tunnelConnector } from '../base/tunnel.ts';
import type { Connection } from './credentials.ts';

/**
 * Time limit of a connection attempt in milliseconds. It is long enough for a TLS handshake with a busy server. It is short enough to
 * notice a dead server soon.
 */
const CONNECT_DEADLINE_MILLISECONDS = 10_000;
/**
 * Time in milliseconds without data after which the kernel begins to probe a connection. The kernel then sends ten probes, one each second.
 * The library libuv determines these two numbers, so they cannot be changed here.
 */
const TCP_KEEP_ALIVE_MILLISECONDS = 5_000;
/**
 * Time in milliseconds after which this process closes an idle connection. The API server closes an idle connection after 90 s. Because
 * this process closes it earlier, no request uses a connection that the server is closing.
 */
const IDLE_CONNECTION_MILLISECONDS = 60_000;
/**
 * Largest number of connections. Each watch needs a connection, and other requests share the rest. The number is far below the 600 requests
 * that the API server handles at the same time for all clients.
 */
const CONNECTIONS = 64;
/** Largest number of watches on one HTTP/2 connection. The API server allows 100 streams. */
const WATCHES_PER_CONNECTION = 90;

/**
 * Creates connections. If `watches` is set, the connections serve only watches, and `watches` is the largest number of watches at the same
 * time. If `proxy` is set, the connections lead through this proxy.
 */
export function createPool(connection: Connection, watches: number | undefined, proxy?: Proxy): Pool {
  const connect = {
    timeout: CONNECT_DEADLINE_MILLISECONDS,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEP_ALIVE_MILLISECONDS,
    ...tlsOptionsOf(connection),
  };
  return new Pool(new URL(connection.server).origin, {
    // Requests other than watches use HTTP/1.1, because an aborted request then closes its connection. With HTTP/2, the connection would
    // stay open, and the next request would use it even if it is dead. In a measurement, HTTP/1.1 and HTTP/2 needed the same CPU time.
    ...(watches === undefined
      ? { connections: CONNECTIONS, allowH2: false }
      : {
          connections: Math.ceil(watches / WATCHES_PER_CONNECTION),
          allowH2: true,
          h2Options: { maxConcurrentStreams: WATCHES_PER_CONNECTION },
        }),
    keepAliveTimeout: IDLE_CONNECTION_MILLISECONDS,
    keepAliveMaxTimeout: IDLE_CONNECTION_MILLISECONDS,
    connect:
      proxy === undefined ? connect : tunnelConnector(proxy, { ...connect, allowH2: watches !== undefined }),
  });
}

/** Returns the TLS options of Node.js: the trusted CA certificates, and the client certificate. */
export function tlsOptionsOf({
  certificateAuthority,
  serverName,
  clientCertificate,
  clientKey,
}: Connection): { ca?: string; servername?: string; cert?: string; key?: string } {
  return {
    ...(certificateAuthority === undefined ? {} : { ca: certificateAuthority }),
    ...(serverName === undefined ? {} : { servername: serverName }),
    ...(clientCertificate === undefined ? {} : { cert: clientCertificate }),
    ...(clientKey === undefined ? {} : { key: clientKey }),
  };
}
