/**
 * Connections over which callers send files to tasks (a task is the work of a Job). A caller sends a request for `attach` that upgrades the
 * connection to a protocol of Berth.
 */
import type { Socket } from 'node:net';
import { finished } from 'node:stream/promises';
import { TRANSFER_PROTOCOL } from '../../api/v1alpha1/transfer.ts';
import type { Upgrade } from '../../kube/serving/upgrades.ts';
import type { StreamRequest } from './streamrequest.ts';

const ACCEPTED = `HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ${TRANSFER_PROTOCOL}\r\n\r\n`;

export function isTransfer({ kind }: StreamRequest, { request }: Upgrade): boolean {
  return kind === 'attach' && request.headers.upgrade?.toLowerCase() === TRANSFER_PROTOCOL;
}

/**
 * Passes the connection to `take`, and resolves when the connection is closed. `take` throws an HttpError if no task waits for a
 * connection.
 */
export async function transfer(
  { socket, head }: Upgrade,
  take: (caller: Socket) => void,
  stop: AbortSignal,
): Promise<void> {
  // `head` contains the first bytes of the connection. These bytes are put back before any other read, so that `take` gets all bytes.
  socket.unshift(head);
  // The socket needs no time limit here, because `take` sets its own limit.
  socket.setTimeout(0);
  take(socket);
  socket.write(ACCEPTED);
  const onStop = (): void => void socket.destroy();
  stop.addEventListener('abort', onStop, { once: true });
  // Errors of the connection are ignored here, because `take` handles them.
  await finished(socket).catch(() => undefined);
  stop.removeEventListener('abort', onStop);
}
