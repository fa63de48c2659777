/** Logs in to a VM by the ssh of this machine. This command is its proxy, so the connection goes through the API server. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { constants } from 'node:os';
import { dirname, join } from 'node:path';
import { isSea } from 'node:sea';
import { codeOf } from '../../base/errors.ts';
import { homeFolder } from '../../base/home.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, ProgramEnded } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { readSettings } from '../settings.ts';
import { runningVM } from '../streams/machine.ts';
import type { Terminal } from '../terminal.ts';

/** Port of SSH in guests. */
const SSH_PORT = '22';
/** The only user that every guest has. */
const DEFAULT_USER = 'root';
/** Exit code of a program that a signal has ended, without the number of the signal, as shells have it. */
const SIGNALLED = 128;
/** A UID of an object. Other texts could have a meaning in the file with the keys of VMs, for example `*` for all of them. */
const UID = /^[\w-]{1,64}$/;

interface Login {
  readonly name: string;
  readonly user: string | undefined;
  /** Command instead of a shell. */
  readonly command: readonly string[];
}

/** Logs in, and ends with the exit code of ssh. @throws ProgramEnded; CommandError; ApiError. */
export async function ssh(
  terminal: Terminal,
  globals: Globals,
  { name, user, command }: Login,
): Promise<void> {
  const { environment, signal } = terminal;
  const settings = await readSettings(environment);
  const known = knownHostsFile(environment);
  const args = await withCluster(terminal, globals, async (cluster) => {
    const { uid = '' } = (await runningVM(cluster, name, signal)).metadata;
    if (!UID.test(uid)) {
      throw new CommandError(`The API server gave VM ${name} an invalid UID: ${JSON.stringify(uid)}`);
    }
    const proxy = proxyCommand({ ...globals, namespace: cluster.namespace }, name);
    return sshArguments({
      proxy,
      known,
      uid,
      destination: `${user || settings.sshUser || DEFAULT_USER}@${name}`,
    });
  });
  // Logins are private, and ssh makes only the file.
  await mkdir(dirname(known), { recursive: true, mode: 0o700 });
  const code = await exitCodeOf('ssh', [...args, ...command], name);
  if (code !== 0) {
    throw new ProgramEnded(code);
  }
}

interface SSHOptions {
  readonly proxy: string;
  /** Path of the file with the keys of VMs. */
  readonly known: string;
  readonly uid: string;
  /** `USER@NAME`. */
  readonly destination: string;
}

/** Returns the arguments of ssh without the command. A VM is known by its UID, so a new VM of an old name is another host. */
function sshArguments({ proxy, known, uid, destination }: SSHOptions): string[] {
  const options = [
    `ProxyCommand=${proxy}`,
    `HostKeyAlias=${uid}`,
    `UserKnownHostsFile="${literal(known)}"`,
    // Keys of other files would be those of hosts with an address.
    'GlobalKnownHostsFile=none',
    // The first key of a VM is accepted, and each other one is refused.
    'StrictHostKeyChecking=accept-new',
    'CheckHostIP=no',
  ];
  // The destination is the last option. A command that begins with a dash is then none.
  return [...options.flatMap((option) => ['-o', option]), '--', destination];
}

/** Returns the command that carries the connection, as ssh gives it to a shell. Credentials stay in the kubeconfig. */
function proxyCommand({ kubeconfig, context, namespace = '' }: Globals, name: string): string {
  const program = isSea() ? [] : [...process.execArgv, process.argv[1] ?? ''];
  const flags = [
    ...(kubeconfig === undefined ? [] : ['--kubeconfig', kubeconfig]),
    ...(context === undefined ? [] : ['--context', context]),
  ];
  const words = [process.execPath, ...program, 'vm', 'port-forward', name, SSH_PORT, '--stdio'];
  return literal([...words, '--namespace', namespace, ...flags].map(quoted).join(' '));
}

/**
 * Returns the word in quotes, for each shell that a user may have. In fish, a backslash has a meaning in single quotes, so it is in double
 * quotes.
 */
function quoted(word: string): string {
  return `'${word.replace(/['\\]/g, (character) => (character === "'" ? `'"'"'` : `'"\\\\"'`))}'`;
}

/** Returns the text without a meaning of its percent signs for ssh. */
function literal(text: string): string {
  return text.replaceAll('%', '%%');
}

/** Returns the file with the keys of VMs. It is no file of ssh, because VMs come and go. */
function knownHostsFile(environment: Terminal['environment']): string {
  const folder = environment['XDG_STATE_HOME'] || join(homeFolder(environment), '.local', 'state');
  return join(folder, 'berth', 'known_hosts');
}

/** Runs the program with the terminal of the user, and returns its exit code. It gets the signals of the terminal itself. */
async function exitCodeOf(program: string, args: readonly string[], name: string): Promise<number> {
  const child = spawn(program, args, { stdio: 'inherit' });
  try {
    const [code, signal] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null];
    return code ?? SIGNALLED + constants.signals[signal ?? 'SIGTERM'];
  } catch (error) {
    throw codeOf(error) === 'ENOENT'
      ? new CommandError(
          `There is no program ${program} on this machine. Install OpenSSH, or forward the port: vm port-forward ${name} 2222:${SSH_PORT}`,
        )
      : error;
  }
}
