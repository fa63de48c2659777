/**
 * Logs in to a VM with the program ssh of this computer, and copies files with its program scp. Both start this command as their
 * `ProxyCommand`, so the connection goes through the API server.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { constants } from 'node:os';
import { dirname, join } from 'node:path';
import { isSea } from 'node:sea';
import { codeOf } from '../../base/errors.ts';
import { homeFolder } from '../../base/files.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT, ProgramEnded } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { readSettings } from '../settingsfile.ts';
import { DEFAULT_USER, runningVM } from './machine.ts';
import type { Terminal } from '../terminal.ts';

/** Port of SSH in guests. */
const SSH_PORT = '22';
/** If a signal ends a program, its exit code is this number plus the number of the signal, as in shells. */
const SIGNALLED = 128;
/**
 * Pattern of a valid UID. ssh writes the UID of a VM into its `known_hosts` file. There, other characters could have a special meaning: for
 * example, `*` stands for all hosts.
 */
const UID = /^[\w-]{1,64}$/;

/** Who logs in. */
export interface SshLoginFlags {
  readonly user?: string;
  /** File with the private key. Without it, ssh chooses the keys. */
  readonly identity?: string;
}

interface Login extends SshLoginFlags {
  readonly name: string;
  /** Command that runs in the VM. If it is empty, ssh starts a shell in the VM. */
  readonly command: readonly string[];
}

/** Logs in. @throws ProgramEnded with the exit code of ssh if it is not 0; CommandError; ApiError. */
export async function ssh(
  terminal: Terminal,
  globals: Globals,
  { name, command, ...flags }: Login,
): Promise<void> {
  const { options, user } = await prepared(terminal, globals, { name, ...flags });
  // After `--`, nothing is an option. So ssh does not read a command that begins with a dash as an option.
  await runProgram(terminal, 'ssh', [...options, '--', `${user}@${name}`, ...command]);
}

interface Copy extends SshLoginFlags {
  readonly source: string;
  readonly target: string;
  /** Whether folders are copied, too. */
  readonly recursive?: boolean;
}

/**
 * Copies a file from or to a VM. One of `source` and `target` is `NAME:PATH`, and the other one is a path of this computer.
 *
 * @throws ProgramEnded with the exit code of scp if it is not 0; CommandError; ApiError.
 */
export async function scp(
  terminal: Terminal,
  globals: Globals,
  { source, target, recursive = false, ...flags }: Copy,
): Promise<void> {
  const remotes = [source, target].map(parseRemote).filter((remote) => remote !== undefined);
  const [remote] = remotes;
  if (remote === undefined || remotes.length > 1) {
    throw new CommandError(
      'Exactly one of the source and the target must be a file of a VM, as NAME:PATH. A path of this computer with a colon begins with ./',
      EXIT.usage,
    );
  }
  const { options, user } = await prepared(terminal, globals, { name: remote.name, ...flags });
  const paths = [source, target].map((text) =>
    parseRemote(text) === undefined ? text : `${user}@${remote.name}:${remote.path}`,
  );
  await runProgram(terminal, 'scp', [...options, ...(recursive ? ['-r'] : []), '--', ...paths]);
}

/** Reads `NAME:PATH`. As for scp, a text is a path of this computer if it has no colon, or a slash before its first colon. */
function parseRemote(text: string): { name: string; path: string } | undefined {
  const [, name, path = ''] = /^([^/:]+):(.*)$/s.exec(text) ?? [];
  return name === undefined ? undefined : { name, path };
}

/** Returns the options of ssh and scp for a VM that runs, and the user of the VM. @throws CommandError; ApiError. */
async function prepared(
  terminal: Terminal,
  globals: Globals,
  { name, user, identity }: SshLoginFlags & { readonly name: string },
): Promise<{ options: string[]; user: string }> {
  const { environment, signal } = terminal;
  const known = knownHostsFile(environment);
  const options = await withCluster(terminal, globals, async (cluster) => {
    const { metadata } = await runningVM(cluster, name, signal);
    return optionsFor({ ...globals, namespace: cluster.namespace }, metadata, { known, identity });
  });
  // ssh creates the `known_hosts` file, but not its folder, so this line creates the folder. Only the user can read the folder, because the
  // file lists the VMs of the user.
  await mkdir(dirname(known), { recursive: true, mode: 0o700 });
  return { options, user: await userOf(terminal, user) };
}

/** Returns the user of a VM for a login: the user of the flag, then that of the settings file, then the default. @throws CommandError. */
export async function userOf({ environment }: Terminal, user: string | undefined): Promise<string> {
  return user || (await readSettings(environment)).sshUser || DEFAULT_USER;
}

/** Files of a login. */
interface LoginFiles {
  /** Path of the `known_hosts` file with the host keys of VMs. */
  readonly known: string;
  /** Path of the private key. If it is undefined, ssh chooses the keys. */
  readonly identity: string | undefined;
}

/**
 * Returns the options of ssh and scp for a VM. The namespace of `globals` must be that of the VM.
 *
 * @throws CommandError when the UID could have a special meaning for ssh.
 */
export function optionsFor(
  globals: Globals,
  { name, uid = '' }: { readonly name: string; readonly uid?: string },
  files: LoginFiles,
): string[] {
  if (!UID.test(uid)) {
    throw new CommandError(`The API server gave VM ${name} an invalid UID: ${JSON.stringify(uid)}`);
  }
  return sshOptions({ proxy: proxyCommand(globals, name), uid, ...files });
}

interface SSHOptions extends LoginFiles {
  readonly proxy: string;
  readonly uid: string;
}

/**
 * Returns the options of ssh, which scp passes on. ssh identifies a VM by its UID. If a new VM gets the name of an earlier VM, ssh treats
 * the new VM as another host.
 */
function sshOptions({ proxy, known, uid, identity }: SSHOptions): string[] {
  const options = [
    `ProxyCommand=${proxy}`,
    `HostKeyAlias=${uid}`,
    `UserKnownHostsFile="${literal(known)}"`,
    // ssh does not read the global `known_hosts` file, because that file lists hosts by their names or addresses. Host keys of VMs are
    // stored under the UIDs of the VMs.
    'GlobalKnownHostsFile=none',
    // ssh accepts the first host key of a VM, and refuses every other host key of this VM.
    'StrictHostKeyChecking=accept-new',
    'CheckHostIP=no',
    // ssh finds a shared connection by the name of the host, and a VM of another namespace can have the same name. Therefore connections
    // are not shared.
    'ControlPath=none',
    // The guest ends the login after a few wrong keys, so ssh must not try those of its agent before the one that the user has chosen.
    ...(identity === undefined ? [] : ['IdentitiesOnly=yes']),
  ];
  return [
    ...(identity === undefined ? [] : ['-i', identity]),
    ...options.flatMap((option) => ['-o', option]),
  ];
}

/**
 * Returns the command line of the program that carries the connection. ssh passes the command line to a shell. The command line has no
 * credentials, because they stay in the kubeconfig.
 */
function proxyCommand({ kubeconfig, context, namespace = '' }: Globals, name: string): string {
  const program = isSea() ? [] : [...process.execArgv, process.argv[1] ?? ''];
  const flags = [
    ...(kubeconfig === undefined ? [] : ['--kubeconfig', kubeconfig]),
    ...(context === undefined ? [] : ['--context', context]),
  ];
  const argv = [process.execPath, ...program, 'vm', 'port-forward', name, SSH_PORT, '--stdio'];
  return literal([...argv, '--namespace', namespace, ...flags].map(quoted).join(' '));
}

/**
 * Puts the word in quotes, so that all common shells read it in the same way. In fish, a backslash in single quotes has a special meaning.
 * Therefore the function puts each backslash in double quotes.
 */
export function quoted(word: string): string {
  return `'${word.replace(/['\\]/g, (character) => (character === "'" ? `'"'"'` : `'"\\\\"'`))}'`;
}

/** Returns the text with escaped percent signs, because percent signs have a meaning for ssh. */
function literal(text: string): string {
  return text.replaceAll('%', '%%');
}

/**
 * Returns the path of the `known_hosts` file for VMs. The user's own `known_hosts` file is not used, because VMs are often created and
 * deleted.
 */
function knownHostsFile(environment: Terminal['environment']): string {
  const folder = environment['XDG_STATE_HOME'] || join(homeFolder(environment), '.local', 'state');
  return join(folder, 'berth', 'known_hosts');
}

/**
 * Runs the program with the terminal of the user. The program receives the signals of the terminal directly. Other signals, for example
 * from a CI system, reach only this command. Therefore the program ends when the signal of `terminal` aborts.
 *
 * @throws ProgramEnded with the exit code of the program if it is not 0; CommandError when the program does not exist; the signal's reason
 * when the signal aborts.
 */
async function runProgram(
  { signal, name: command }: Terminal,
  program: string,
  args: readonly string[],
): Promise<void> {
  const child = spawn(program, args, { stdio: 'inherit', signal });
  let code: number;
  try {
    const [own, cause] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null];
    code = own ?? SIGNALLED + constants.signals[cause ?? 'SIGTERM'];
  } catch (error) {
    signal.throwIfAborted();
    throw codeOf(error) === 'ENOENT'
      ? new CommandError(
          `There is no program ${program} on this computer. Install OpenSSH, or forward the port: ${command} vm port-forward NAME 2222:${SSH_PORT}`,
        )
      : error;
  }
  if (code !== 0) {
    throw new ProgramEnded(code);
  }
}
