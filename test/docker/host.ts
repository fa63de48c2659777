/** Finds out whether this machine can run containers of Docker. */
import { accessSync, constants, existsSync } from 'node:fs';
import { get } from 'node:http';
import { delimiter, join } from 'node:path';

const PROGRAMS = ['dockerd', 'containerd', 'runc'];
/** Folders in which the programs may be. PATH often does not contain all of them. */
export const FOLDERS: readonly string[] = [
  ...(process.env['PATH'] ?? '').split(delimiter),
  '/usr/sbin',
  '/sbin',
  '/usr/local/sbin',
];
const MACHINE_SOCKET = '/var/run/docker.sock';
/** Time limit for one answer on a local socket, in milliseconds. */
const PING_MILLISECONDS = 2_000;

/** Returns the reason why this machine cannot run containers, or undefined if it can. */
export function whyNoDocker(): string | undefined {
  if (process.platform !== 'linux') {
    return 'containers with the network of this machine need Linux';
  }
  if (process.env['DOCKER_HOST'] !== undefined || mayWrite(MACHINE_SOCKET)) {
    return undefined;
  }
  if (process.getuid?.() !== 0) {
    return 'no Docker daemon may be asked, and only root can start one';
  }
  const missing = PROGRAMS.filter((name) => !FOLDERS.some((folder) => existsSync(join(folder, name))));
  return missing.length === 0 ? undefined : `not installed: ${missing.join(', ')}`;
}

function mayWrite(path: string): boolean {
  try {
    accessSync(path, constants.W_OK);
    return true;
  } catch {
    // The socket does not exist, or this user may not use it. In both cases the daemon cannot be used.
    return false;
  }
}

/** Returns whether a daemon answers that tests must not start themselves: the daemon of this machine, or the one in DOCKER_HOST. */
export async function isDaemonHere(): Promise<boolean> {
  if (process.env['DOCKER_HOST'] !== undefined) {
    return true;
  }
  // A socket without a listener is left over from a daemon that has ended.
  return mayWrite(MACHINE_SOCKET) && (await ping(MACHINE_SOCKET).catch(() => false));
}

/** Returns whether the daemon at this socket answers. Rejects if nothing listens there. */
export function ping(socketPath: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const options = { socketPath, path: '/_ping', timeout: PING_MILLISECONDS };
    const request = get(options, (response) => {
      response.resume();
      response.once('end', () => resolve(response.statusCode === 200));
      response.once('error', reject);
    });
    request.once('timeout', () => request.destroy(new Error('no answer')));
    request.once('error', reject);
  });
}
