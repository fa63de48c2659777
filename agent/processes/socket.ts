/** Connects to Unix sockets in machines' folders, even if the path of a socket is longer than the system allows. */
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { createConnection, type Socket } from 'node:net';
import { join } from 'node:path';

/** Longest path of a socket: `sun_path` holds 108 bytes on Linux and 104 on macOS, and the closing zero uses one byte. */
const SOCKET_PATH_LIMIT_BYTES = process.platform === 'linux' ? 107 : 103;

/**
 * Calls `use` with a path to the socket `folder/name`. The path is short enough for the system. The path is valid only until the promise of
 * `use` settles.
 */
export async function withSocketPath<T>(
  folder: string,
  name: string,
  use: (path: string) => Promise<T>,
): Promise<T> {
  const path = join(folder, name);
  if (Buffer.byteLength(path) <= SOCKET_PATH_LIMIT_BYTES) {
    return await use(path);
  }
  if (process.platform !== 'linux') {
    throw new Error(
      `The path ${path} is too long for a socket. The limit is ${SOCKET_PATH_LIMIT_BYTES} bytes: choose a shorter data directory`,
    );
  }
  const descriptor = openSync(folder, 'r');
  try {
    return await use(`/proc/self/fd/${descriptor}/${name}`);
  } finally {
    closeSync(descriptor);
  }
}

/**
 * Connects to a Unix socket.
 *
 * @throws Error of the system (ENOENT, ECONNREFUSED, EAGAIN) when no process listens.
 */
export async function connectTo(path: string): Promise<Socket> {
  const socket = createConnection(path);
  await once(socket, 'connect');
  return socket;
}
