/** What this machine has for containers of Docker. */
import { accessSync, constants, existsSync } from 'node:fs';
import { get } from 'node:http';
import { delimiter, join } from 'node:path';

const PROGRAMS = ['dockerd', 'containerd', 'runc'];
/** Where they may be: PATH often leaves some out. */
export const FOLDERS: readonly string[] = [
  ...(process.env['PATH'] ?? '').split(delimiter),
  '/usr/sbin',
  '/sbin',
  '/usr/local/sbin',
];
const MACHINE_SOCKET = '/var/run/docker.sock';
/** One answer on a local socket. */
const PING_MILLISECONDS = 2_000;

/** Why there can be no containers here: no daemon may be asked, and none started. Undefined when there can. */
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
    // Not there or not ours: in both cases it cannot be asked.
    return false;
  }
}

/** Whether a daemon answers that is not ours to start: one of this machine, or one that was named. */
export async function isDaemonHere(): Promise<boolean> {
  if (process.env['DOCKER_HOST'] !== undefined) {
    return true;
  }
  // A socket that nobody listens at outlived its daemon.
  return mayWrite(MACHINE_SOCKET) && (await ping(MACHINE_SOCKET).catch(() => false));
}

/** Whether the daemon of this socket answers; rejects where nothing listens. */
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
