/**
 * Runs one command in a VM of its own: makes the VM or claims it from a pool, waits until it is Ready, runs the command by ssh, and deletes the VM. While the command
 * runs, this process prolongs the life of the VM. If this process is killed, the operator therefore deletes the VM.
 */
import { isUtf8 } from 'node:buffer';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { LIFE_MILLISECONDS, prolong } from '../../actions/hold.ts';
import { timeoutMinutes } from '../../api/http/vmspec.ts';
import { SECRETS } from '../../kube/core.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, described, EXIT, ProgramEnded, RUN_EXIT } from '../errors.ts';
import type { Copy } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import { bodyOf, checkTimeout, type DeployFlags, readOwnKey, vmFrom } from './deploy.ts';
import { addKeys } from './exec.ts';
import { copyIn, copyOut, requireSources } from './guestfiles.ts';
import { type GuestShell, inShell, makeKey } from './guestshell.ts';
import {
  claimHeld,
  createHeld,
  type GuestJob,
  keyIn,
  makeJob,
  openShell,
  removeVM,
  stage,
  untilReady,
  type Used,
  whileHeld,
} from './heldvm.ts';
import { quoted } from './ssh.ts';

export interface RunFlags extends DeployFlags {
  /** Name of a VMPool. Its template has all fields of the VM. */
  readonly pool?: string;
  readonly user?: string;
  readonly identity?: string;
  /** Name of the Secret whose entries are environment variables of the command. */
  readonly envSecret?: string;
  readonly copy?: readonly Copy[];
  readonly copyOut?: readonly Copy[];
  readonly keepOnFailure?: boolean;
  /** Life in milliseconds of a VM that nobody prolongs. */
  readonly life?: number;
}

/** Start of the generated names of VMs. */
const NAME = 'run';
/** Life in milliseconds of a VM that is kept after a failure, so that a person can look at it. */
const KEPT_MILLISECONDS = 24 * 3_600_000;
/** Time limit in milliseconds for the request that keeps a VM. */
const KEEP_MILLISECONDS = 30_000;
/** Name of an environment variable. */
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** Number of random bytes in the name of the folder for environment variables. */
const FOLDER_BYTES = 8;

/** Flags that `--pool` leaves a meaning. All others describe a VM. */
const POOL_FLAGS: ReadonlySet<string> = new Set<keyof RunFlags>([
  'pool',
  'user',
  'identity',
  'envSecret',
  'copy',
  'copyOut',
  'keepOnFailure',
  'life',
  'timeout',
]);

interface Work {
  readonly flags: RunFlags;
  readonly command: readonly string[];
}

/**
 * Runs the command in a VM.
 *
 * @throws ProgramEnded with the exit code of the command if it is not 0; CommandError with a code of {@link RUN_EXIT} if Berth could not run
 * the command; Interrupted.
 */
export async function run(terminal: Terminal, globals: Globals, work: Work): Promise<void> {
  checkFlags(work.flags);
  await requireSources(work.flags.copy ?? []);
  // Shell and system both send this signal when a terminal is closed, and a second one must not prevent the deletion of the VM.
  const hangUp = (): void => {
    if (!terminal.signal.aborted) {
      terminal.interrupt?.('SIGHUP');
    }
  };
  process.on('SIGHUP', hangUp);
  const folder = await mkdtemp(join(tmpdir(), 'berth-run-'));
  try {
    await runWith(terminal, globals, { ...work, folder });
  } finally {
    process.off('SIGHUP', hangUp);
    await rm(folder, { recursive: true, force: true });
  }
}

/** @throws CommandError when a flag describes a VM although the VM comes from a pool, or when the time limit is out of bounds. */
function checkFlags({ pool, ...flags }: RunFlags): void {
  const foreign = Object.entries(flags).find(([name, value]) => value !== undefined && !POOL_FLAGS.has(name));
  if (pool !== undefined && foreign !== undefined) {
    const flag = foreign[0].replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    throw new CommandError(
      `Use only one of --pool and --${flag}: a VM of a pool has the fields of the pool's template`,
      EXIT.usage,
    );
  }
  checkTimeout(flags.timeout);
}

async function runWith(
  terminal: Terminal,
  globals: Globals,
  { flags, command, folder }: Work & { readonly folder: string },
): Promise<void> {
  const { signal } = terminal;
  const { pool, envSecret, user, identity, life: lifeMilliseconds = LIFE_MILLISECONDS } = flags;
  // Flags that are missing or wrong are told before the cluster is asked.
  const source: Source =
    pool === undefined ? { body: bodyOf(NAME, { ...flags, generateName: true }) } : { pool };
  await withCluster(terminal, globals, async (cluster) => {
    const variables = envSecret === undefined ? undefined : await environmentFrom(cluster, envSecret, signal);
    const key = identity === undefined ? [await makeKey(keyIn(folder), signal)] : [];
    const keys = [...key, ...ownKeys(terminal, flags)];
    const job = makeJob(
      { terminal, cluster, globals },
      { folder, identity, user, lifeMilliseconds, minutes: timeoutMinutes(flags) },
    );
    const latest = await takeVM(job, source, { flags, sshKey: keys });
    const code = await whileUsed(job, latest, flags, async (held) => {
      await untilReady(job, latest, held);
      await placeKeys(job, latest, keys, held);
      await using shell = await openShell(job, latest.vm, held);
      // The connection needs the key no more. A command that is killed would leave it behind.
      await rm(keyIn(folder), { force: true });
      return await runIn(shell, { flags, command, variables, terminal }, held);
    });
    if (code !== 0) {
      throw new ProgramEnded(code);
    }
  });
}

/** Where the VM comes from: a VMPool, or a request for a new VM. */
type Source = { readonly pool: string } | { readonly body: ReturnType<typeof bodyOf> };

/** Claims a VM from the pool, or creates the one of the request with the flags and keys. */
async function takeVM(
  job: GuestJob,
  source: Source,
  { flags, sshKey }: { readonly flags: RunFlags; readonly sshKey: readonly string[] },
): Promise<Used> {
  const { signal } = job.terminal;
  if ('pool' in source) {
    const claim = await claimHeld(job, source.pool, signal);
    return { vm: claim.vm, claim };
  }
  const { body } = source;
  const vm = vmFrom(body, { ...flags, ...(sshKey.length > 0 && { sshKey }) }, job.cluster.namespace);
  return { vm: await createHeld(job, vm, signal) };
}

/** Adds the keys to a VM of a pool through its guest agent, because the VM was made before them. @throws CommandError */
async function placeKeys(
  job: GuestJob,
  used: Used,
  keys: readonly string[],
  signal: AbortSignal,
): Promise<void> {
  if (used.claim === undefined || keys.length === 0) {
    return;
  }
  const { terminal, globals, user } = job;
  const quiet = { ...terminal, out: () => undefined, signal };
  const { name } = used.vm.metadata;
  try {
    await addKeys(quiet, globals, { name, keys, user });
  } catch (error) {
    signal.throwIfAborted();
    throw new CommandError(
      `VM ${name} did not take a key for the login: ${described(error).message}. Use --identity with a key of the pool's template`,
      RUN_EXIT.login,
    );
  }
}

/** Returns the keys of the flags. A VM that is kept after a failure also takes the key of the user. */
function ownKeys(terminal: Terminal, { sshKey, keepOnFailure = false }: RunFlags): readonly string[] {
  return sshKey ?? (keepOnFailure ? (readOwnKey(terminal)?.keys ?? []) : []);
}

/** Runs `work` while the VM is held. Then deletes the VM, or keeps it after a failure if the flags say so. */
async function whileUsed(
  job: GuestJob,
  latest: Used,
  { keepOnFailure = false }: RunFlags,
  work: (signal: AbortSignal) => Promise<number>,
): Promise<number> {
  const { signal } = job.terminal;
  let hasSucceeded = false;
  try {
    const code = await whileHeld(job, latest.vm, signal, work);
    hasSucceeded = code === 0;
    return code;
  } finally {
    const isKept = keepOnFailure && !hasSucceeded && !signal.aborted;
    await (isKept ? keepVM(job, latest.vm) : removeVM(job, latest.vm));
  }
}

/** Keeps the VM for a day, and tells the user. Never rejects. */
async function keepVM({ terminal, cluster, clock }: GuestJob, vm: Used['vm']): Promise<void> {
  const { name } = vm.metadata;
  const signal = AbortSignal.timeout(KEEP_MILLISECONDS);
  const hold = { client: cluster.client, vm, clock, lifeMilliseconds: KEPT_MILLISECONDS, signal };
  try {
    const until = await prolong(hold, KEEP_MILLISECONDS);
    terminal.err(`VM ${name} is kept until ${until}: ${terminal.name} vm ssh ${name}\n`);
  } catch (error) {
    terminal.err(`VM ${name} could not be kept: ${described(error).message}\n`);
  }
}

interface Command extends Work {
  /** Text that sets the environment variables of the command in a shell. */
  readonly variables: string | undefined;
  readonly terminal: Terminal;
}

/** Copies files in, runs the command, and copies files out. Returns the exit code of the command. */
async function runIn(
  shell: GuestShell,
  { flags, command, variables, terminal }: Command,
  signal: AbortSignal,
): Promise<number> {
  for (const copy of flags.copy ?? []) {
    await copyIn(shell, copy, signal);
  }
  const place = variables === undefined ? '' : await placeVariables(shell, variables, signal);
  const child = shell.start(inShell(COMMAND, [place, ...command]), { stdio: 'inherit', signal });
  const code = await shell.exitCode(child, signal);
  for (const copy of flags.copyOut ?? []) {
    await copyOutAfter(code, terminal, async () => await copyOut(shell, copy, terminal.err, signal));
  }
  return code;
}

/** Copies out. If the command itself has failed, a failure is only told, because the exit code of the command says more. */
async function copyOutAfter(code: number, { err }: Terminal, copy: () => Promise<void>): Promise<void> {
  try {
    await copy();
  } catch (error) {
    if (code === 0 || !(error instanceof CommandError) || error.exitCode !== RUN_EXIT.copyOut) {
      throw error;
    }
    err(`error: ${described(error).message}\n`);
  }
}

/**
 * Script that runs the command. `$1` is the folder with the environment variables, or empty. The folder goes before the variables are set,
 * because they can change the PATH. The shell stays until the command ends, so that
 * the exit code also tells which signal has ended the command.
 */
const COMMAND =
  'if [ -n "$1" ]; then berth=$(cat "$1/variables") && rm -r "$1" && eval "$berth" || exit; fi; shift; "$@"; exit $?';

/** Writes the variables into a file of the guest that only its user can read. Returns the folder of the file. @throws CommandError. */
async function placeVariables(shell: GuestShell, variables: string, signal: AbortSignal): Promise<string> {
  // Not every guest has a folder for temporary files. This one is in the home folder of the user.
  const folder = `./.berth-${randomBytes(FOLDER_BYTES).toString('hex')}`;
  const script = 'umask 077; mkdir "$1" && cat > "$1/variables"';
  const { code } = await shell.read(inShell(script, [folder]), signal, variables);
  if (code !== 0) {
    throw new CommandError(`The environment could not be written to ${folder} of the guest`, RUN_EXIT.copyIn);
  }
  return folder;
}

/** Returns a text of the shell that sets the entries of the Secret as environment variables. @throws CommandError. */
async function environmentFrom(
  { client, namespace }: UserCluster,
  name: string,
  signal: AbortSignal,
): Promise<string> {
  const reading = async () => await client.get(SECRETS, { namespace, name }, { signal });
  const { data = {} } = await stage(RUN_EXIT.secret, signal, reading);
  const variables = Object.entries(data).map(([key, value]) => {
    const bytes = Buffer.from(value, 'base64');
    const text = bytes.toString('utf8');
    if (!VARIABLE.test(key) || !isUtf8(bytes) || text.includes('\0')) {
      throw new CommandError(
        `--env-secret ${name}: the entry ${JSON.stringify(key)} must have the name of an environment variable (letters, digits and underscores), and a text in UTF-8 without NUL`,
        RUN_EXIT.secret,
      );
    }
    return `export ${key}=${quoted(text)}\n`;
  });
  return variables.join('');
}
