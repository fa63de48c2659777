/** Lets a server of `httpserver.ts` accept upgrades to another protocol. A refused upgrade gets the same answer as a refused request. */
import { type IncomingMessage, type Server, STATUS_CODES } from 'node:http';
import type { Server as HttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { HttpError } from './httperror.ts';
import { urlOf } from './httpserver.ts';

/**
 * Time in milliseconds that a client has to close the connection after the server's last data. After this time, the server destroys the
 * connection.
 */
const CLOSE_MILLISECONDS = 5_000;

/**
 * Request for an upgrade. The handler writes its answer to the socket. To refuse, it throws an {@link HttpError} before it writes anything.
 */
export interface Upgrade {
  request: IncomingMessage;
  url: URL;
  socket: Socket;
  /** First bytes that the client sent after the headers of the request. */
  head: Buffer;
}

/**
 * Handles an upgrade. The server closes the connection when the promise settles. If the promise rejects with an HttpError before the
 * handler has sent data, the client gets this error as the answer. Other errors are logged.
 */
export type UpgradeHandler = (upgrade: Upgrade) => Promise<void>;

/** Makes the server accept upgrades. Without this call, a request with `Upgrade` is answered like any other request. */
export function acceptUpgrades(server: Server | HttpsServer, handle: UpgradeHandler, logger: Logger): void {
  server.on('upgrade', (request: IncomingMessage, stream: Duplex, head: Buffer) => {
    // The type cast is safe, because the connections of these servers are always TCP or TLS sockets.
    void serve(handle, { request, socket: stream as Socket, head }, logger);
  });
}

async function serve(
  handle: UpgradeHandler,
  { request, socket, head }: Omit<Upgrade, 'url'>,
  logger: Logger,
): Promise<void> {
  // Without a listener, an error of the connection would end the process.
  socket.on('error', (error) => logger.debug({ err: error }, 'an upgraded connection failed'));
  const sent = socket.bytesWritten;
  try {
    const url = urlOf(request.url ?? '/');
    if (url === null) {
      throw new HttpError(400, 'Bad Request');
    }
    await handle({ request, url, socket, head });
  } catch (error) {
    const known = error instanceof HttpError;
    if (!known) {
      // Only the path is logged, because the query can contain the command of `kubectl exec` with its secrets.
      logger.error({ err: error, path: request.url?.split('?')[0] }, 'upgrade failed');
    }
    if (socket.writable && socket.bytesWritten === sent) {
      socket.write(refusal(known ? error : new HttpError(500, 'Internal Server Error')));
    }
  }
  socket.end();
  setTimeout(() => socket.destroy(), CLOSE_MILLISECONDS).unref();
}

function refusal({ status, message }: HttpError): string {
  const body = `${message}\n`;
  return [
    `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}`,
    'content-type: text/plain; charset=utf-8',
    `content-length: ${Buffer.byteLength(body)}`,
    'x-content-type-options: nosniff',
    'connection: close',
    '',
    body,
  ].join('\r\n');
}
