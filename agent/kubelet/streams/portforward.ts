/** Serves `kubectl port-forward`, which connects a caller to TCP ports of a guest. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { Logger } from 'pino';
import { codeOf } from '../../../base/errors.ts';
import { type PortForward, StreamRefused } from '../../drivers/driver.ts';
import { ClientGoneError, type PortConnection } from './session.ts';

/**
 * Time limit for a guest to accept a connection. A running guest on this host needs only milliseconds, but a guest that is starting can
 * need a few seconds.
 */
const CONNECT_MILLISECONDS = 10_000;
/**
 * If a connection transfers no data for this time, the kernel sends a packet to the guest. The packet checks whether the guest still has
 * the connection. If the guest does not answer, the kernel closes the connection 10 s later.
 */
const KEEP_ALIVE_MILLISECONDS = 30_000;

/**
 * Connects the caller to a port of the guest, and resolves when both ends have closed the connection. The function `open` connects to the
 * guest. The promise never rejects.
 */
export async function forward(
  open: (port: number) => Promise<Duplex>,
  connection: PortConnection,
  logger: Logger,
): Promise<void> {
  const { port, data } = connection;
  try {
    const guest = await open(port);
    await Promise.all([pipeline(data, guest), pipeline(guest, data)]);
    connection.end();
  } catch (error) {
    // An error with a code means that the caller or the guest has broken the connection. The caller gets no message about such an error,
    // because the caller notices the end of the connection anyway.
    if (codeOf(error) !== undefined || error instanceof ClientGoneError) {
      connection.end();
      return;
    }
    if (!(error instanceof StreamRefused)) {
      logger.error({ err: error, port }, 'a connection to a guest failed');
    }
    connection.end(error instanceof StreamRefused ? error.message : `Port ${port} cannot be reached`);
  }
}

/**
 * Connects to `port` of `host`, which leads to a port of the guest. Error messages name the port of the guest, `guestPort`. @throws
 * StreamRefused when nothing accepts the connection.
 */
export async function connectGuest(host: string, port: number, guestPort: number): Promise<Socket> {
  const keepAlive = { keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MILLISECONDS };
  const socket = connect({ host, port, allowHalfOpen: true, noDelay: true, ...keepAlive });
  // The pipeline that uses the connection reports the errors of the connection. Without this listener, an error before the pipeline exists
  // would end the agent.
  socket.on('error', () => undefined);
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(CONNECT_MILLISECONDS) });
    return socket;
  } catch (error) {
    socket.destroy();
    const cause = codeOf(error) === 'ECONNREFUSED' ? 'no program listens on it' : 'the guest does not answer';
    throw new StreamRefused(`Port ${guestPort} of the guest cannot be reached: ${cause}`, { cause: error });
  }
}

interface Shared {
  forward: Promise<PortForward>;
  users: number;
}

/** Shares each {@link PortForward} among all connections to one port of one guest. A forward is closed after its last connection. */
export class SharedForwards {
  readonly #shared = new Map<string, Shared>();

  /**
   * Connects to a port of a guest through the forward that `key` identifies. If there is no such forward yet, calls `open` to make the
   * forward. @throws StreamRefused when the guest or `open` refuses the connection.
   */
  async connect(key: string, guestPort: number, open: () => Promise<PortForward>): Promise<Socket> {
    const shared = this.#shared.get(key) ?? { forward: open(), users: 0 };
    this.#shared.set(key, shared);
    shared.users += 1;
    try {
      const { port } = await shared.forward;
      const socket = await connectGuest('127.0.0.1', port, guestPort);
      socket.once('close', () => void this.#leave(key, shared));
      return socket;
    } catch (error) {
      await this.#leave(key, shared);
      throw error;
    }
  }

  /** Records that one connection no longer uses a forward. If this was its last connection, closes the forward. */
  async #leave(key: string, shared: Shared): Promise<void> {
    shared.users -= 1;
    if (shared.users > 0) {
      return;
    }
    this.#shared.delete(key);
    const [opened] = await Promise.allSettled([shared.forward]);
    if (opened.status === 'fulfilled') {
      await opened.value.close();
    }
  }
}
