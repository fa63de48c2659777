/** A login into a guest by SSH through `kubectl port-forward`, for the demo and the tests. */
import { mkdir, readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { type RunningProgram, run, start } from '../base/exec.ts';
import { waitFor } from './wait.ts';

/** Time limit in milliseconds for the creation of a key, which usually takes milliseconds. */
const KEY_TIMEOUT_MILLISECONDS = 30_000;
/** Time limit of one attempt to log in. An emulated guest needs some seconds for its part of the key exchange. */
const ATTEMPT_MILLISECONDS = 30_000;
/** Time limit for the guest's SSH server to answer, after the guest is Ready. */
const LOGIN_MILLISECONDS = 90_000;
const ATTEMPT_INTERVAL_MILLISECONDS = 1_000;

export interface Guest {
  kubectlPath: string;
  kubeconfig: string;
  namespace: string;
  /** Name of the VM. Its Pod has the same name. */
  vm: string;
  user: string;
  /** Path of the private key. */
  key: string;
}

/** Makes a key without a passphrase at the path. Returns the public key, as an authorized_keys file has it. */
export async function makeKey(path: string): Promise<string> {
  await mkdir(dirname(path), { recursive: true });
  await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', 'berth', '-f', path], {
    timeoutMilliseconds: KEY_TIMEOUT_MILLISECONDS,
  });
  return (await readFile(`${path}.pub`, 'utf8')).trim();
}

/**
 * Runs a command in the guest and returns its output. Tries again until the SSH server of the guest answers.
 * @throws Error with the last message of ssh or kubectl, after the time limit.
 */
export async function logIn(guest: Guest, command: string): Promise<string> {
  return await waitFor(`a login into ${guest.vm}`, async () => await attempt(guest, command), {
    deadlineMilliseconds: LOGIN_MILLISECONDS,
    intervalMilliseconds: ATTEMPT_INTERVAL_MILLISECONDS,
  });
}

async function attempt(guest: Guest, command: string): Promise<string> {
  const pod = ['-n', guest.namespace, `pod/${guest.vm}`];
  const forward = start(
    guest.kubectlPath,
    ['--kubeconfig', guest.kubeconfig, 'port-forward', ...pod, ':22'],
    { name: 'kubectl port-forward', timeoutMilliseconds: ATTEMPT_MILLISECONDS },
  );
  try {
    const port = await forwardedPort(forward);
    return await run('ssh', [...sshOptions(guest.key, port), `${guest.user}@127.0.0.1`, command], {
      timeoutMilliseconds: ATTEMPT_MILLISECONDS,
    });
  } finally {
    forward.end();
  }
}

/** Returns the local port. The output stays open, because kubectl also writes a line for each connection. */
async function forwardedPort({ output, ended }: RunningProgram): Promise<number> {
  let text = '';
  for await (const piece of output.iterator({ destroyOnReturn: false })) {
    text += String(piece);
    const [, port] = /127\.0\.0\.1:(\d+) -> /.exec(text) ?? [];
    if (port !== undefined) {
      output.resume();
      return Number(port);
    }
  }
  await ended;
  throw new Error('kubectl port-forward ended before it forwarded a port');
}

/** Returns options with which ssh uses only the key and does not store host keys. Each guest makes its own host key. */
export function sshOptions(key: string, port: number): string[] {
  const settings = [
    'IdentitiesOnly=yes',
    'BatchMode=yes',
    'StrictHostKeyChecking=no',
    'UserKnownHostsFile=/dev/null',
    'LogLevel=ERROR',
  ];
  return ['-i', key, '-p', String(port), ...settings.flatMap((setting) => ['-o', setting])];
}
