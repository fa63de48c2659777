/** Connections to one API server. */
import { Pool } from 'undici';
import type { Connection } from './credentials.ts';

/** Time limit of a connection attempt. It allows a TLS handshake with a busy server, and is short enough to notice a dead server soon. */
const CONNECT_DEADLINE_MILLISECONDS = 10_000;
/** Time without data after which the kernel begins to probe a connection. It then probes every second, ten times, as set by libuv. */
const TCP_KEEP_ALIVE_MILLISECONDS = 5_000;
/**
 * Time after which an idle connection is closed. The API server closes an idle connection after 90 s. Because this process closes first, no
 * request uses a connection that the server is closing.
 */
const IDLE_CONNECTION_MILLISECONDS = 60_000;
/**
 * Limit of connections. Each watch uses one connection, and requests share the others. The API server runs 600 requests at once for all
 * clients.
 */
const CONNECTIONS = 64;
/** Watches on one HTTP/2 connection. The API server allows 100 streams. */
const WATCHES_PER_CONNECTION = 90;

/** Creates the connections. With `watches`, they are for that many watches at once, and for nothing else. */
export function createPool(connection: Connection, watches: number | undefined): Pool {
  const { certificateAuthority, serverName, clientCertificate, clientKey } = connection;
  return new Pool(connection.server, {
    // On HTTP/1.1, an aborted request closes its connection. On HTTP/2, the next request would use the same dead connection. A measurement
    // showed the same CPU time for both.
    ...(watches === undefined
      ? { connections: CONNECTIONS, allowH2: false }
      : {
          connections: Math.ceil(watches / WATCHES_PER_CONNECTION),
          allowH2: true,
          h2Options: { maxConcurrentStreams: WATCHES_PER_CONNECTION },
        }),
    keepAliveTimeout: IDLE_CONNECTION_MILLISECONDS,
    keepAliveMaxTimeout: IDLE_CONNECTION_MILLISECONDS,
    connect: {
      timeout: CONNECT_DEADLINE_MILLISECONDS,
      keepAlive: true,
      keepAliveInitialDelay: TCP_KEEP_ALIVE_MILLISECONDS,
      ...(certificateAuthority === undefined ? {} : { ca: certificateAuthority }),
      ...(serverName === undefined ? {} : { servername: serverName }),
      ...(clientCertificate === undefined ? {} : { cert: clientCertificate }),
      ...(clientKey === undefined ? {} : { key: clientKey }),
    },
  });
}
