/** `kubectl port-forward`: connections of a caller to ports of a guest. */
import { pipeline } from 'node:stream/promises';
import type { Logger } from 'pino';
import { codeOf } from '../../base/errors.ts';
import { StreamRefused } from '../drivers/driver.ts';
import { ClientGoneError, type PortConnection } from './streams/session.ts';
import type { StreamTarget } from './targets.ts';

/** Carries one connection until both ends have closed it. Never rejects. */
export async function forward(
  target: StreamTarget,
  connection: PortConnection,
  logger: Logger,
): Promise<void> {
  const { port, data } = connection;
  try {
    const guest = await target.port(port);
    await Promise.all([pipeline(data, guest), pipeline(guest, data)]);
    connection.end();
  } catch (error) {
    // An error with a code means that the caller or the guest has broken the connection. The agent sends no message, because the other side
    // notices this anyway.
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
