/** Runs programs in VMs, attaches to their consoles, and shows what they wrote there. */
import { writeFile } from 'node:fs/promises';
import { type Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { once } from 'node:events';
import { StringDecoder } from 'node:string_decoder';
import {
  hostMessage,
  parseSessionStatus,
  readMessage,
  type SessionStatus,
  takePicture,
} from '../../actions/session.ts';
import { CONSOLE_ESCAPE } from '../../api/v1alpha1/names.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT, ProgramEnded } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { runningVM, streamPath, withoutPod } from './machine.ts';
import { RawMode, type Terminal } from '../terminal.ts';
import { COMMAND_CHANNEL, COMMAND_PROTOCOL } from '../../kube/channelprotocol.ts';
import type { Channels } from '../../kube/channels.ts';
import { printable, printableLines } from '../text.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { getNamed } from '../objects/named.ts';
import { readSettings } from '../settingsfile.ts';
import { DEFAULT_USER } from './machine.ts';
import { VM_KIND } from './kind.ts';

/** Largest exit code of a process. The system would shorten a larger code. For example, 256 would become 0, which means success. */
const EXIT_CODE_LIMIT = 255;

interface SessionRequest {
  readonly name: string;
  readonly path: string;
  /** Whether the session uses the terminal of the user. */
  readonly tty: boolean;
  /** Whether the session reads the standard input. */
  readonly input: boolean;
  /** Returns a stream for the typed keys. The stream calls `end` when the user types the key that leaves the session. */
  readonly leave?: (end: () => void) => Transform;
}

/**
 * Runs the session.
 *
 * @throws ProgramEnded with the exit code of the command if it is not 0; CommandError; ApiError; the signal's reason when the signal
 * aborts.
 */
export async function runSession(
  { watches }: UserCluster,
  request: SessionRequest,
  signal: AbortSignal,
): Promise<void> {
  const { name, path } = request;
  let channels: Channels;
  try {
    channels = await watches.channels({
      path,
      protocol: COMMAND_PROTOCOL,
      numbers: Object.values(COMMAND_CHANNEL),
      signal,
    });
  } catch (error) {
    throw withoutPod(error, name);
  }
  const ended = await follow(channels, request);
  signal.throwIfAborted();
  if (ended !== 'left') {
    judge(ended, name);
  }
}

/** Carries the streams until the session ends. Resolves with the text of the Status, or with `left` if the user has left the session. */
async function follow(channels: Channels, request: SessionRequest): Promise<string> {
  const { tty, input, leave } = request;
  let hasLeft = false;
  for (const unread of [COMMAND_CHANNEL.stdin, COMMAND_CHANNEL.size]) {
    // Through this channel, the host only receives. If the host writes to the channel nevertheless, this line drops the data. Otherwise a
    // hostile host could fill the channel, and a full channel stops all other channels.
    channels.channel(unread).resume();
  }
  const end = (): void => {
    hasLeft = true;
    channels.close();
  };
  const terminal = tty ? new RawTerminal((size) => sendSize(channels, size)) : undefined;
  const enough = new AbortController();
  const keys = leave === undefined ? [] : [leave(end)];
  const stdin: Readable = process.stdin;
  const typed = input
    ? pipeline([stdin, ...keys, channels.channel(COMMAND_CHANNEL.stdin)], { signal: enough.signal })
    : undefined;
  const outcome = Promise.allSettled([
    typed,
    pipeline(channels.channel(COMMAND_CHANNEL.stdout), process.stdout, { end: false }),
    pipeline(channels.channel(COMMAND_CHANNEL.stderr), process.stderr, { end: false }),
  ]);
  try {
    const [status] = await Promise.all([
      readMessage(channels.channel(COMMAND_CHANNEL.status)),
      channels.ended,
    ]);
    return hasLeft ? 'left' : status;
  } finally {
    terminal?.[Symbol.dispose]();
    // After the session, nobody needs more input. This line stops reading the standard input, because otherwise the process could not end.
    enough.abort();
    await outcome;
  }
}

function sendSize(channels: Channels, { columns, rows }: { columns: number; rows: number }): void {
  channels.channel(COMMAND_CHANNEL.size).write(JSON.stringify({ Width: columns, Height: rows }));
}

/** @throws ProgramEnded or CommandError if the Status is not a success. */
function judge(text: string, name: string): void {
  const status = parseSessionStatus(text);
  if (status === undefined) {
    throw new CommandError(`The connection to VM ${name} was lost. Connect again`, EXIT.noAnswer);
  }
  if (status.status === 'Success') {
    return;
  }
  const code = exitCodeIn(status);
  const sentence = printable(hostMessage(status));
  throw code === undefined
    ? new CommandError(sentence || `The session with VM ${name} failed`)
    : new ProgramEnded(code);
}

function exitCodeIn({ reason, details }: SessionStatus): number | undefined {
  const code = Number(details?.causes?.find((cause) => cause.reason === 'ExitCode')?.message);
  const isWhole = Number.isInteger(code) && code > 0 && code <= EXIT_CODE_LIMIT;
  return reason === 'NonZeroExitCode' && isWhole ? code : undefined;
}

interface TerminalSize {
  readonly columns: number;
  readonly rows: number;
}

class RawTerminal implements Disposable {
  readonly #rawMode: RawMode;
  readonly #resize: () => void;

  /** `onSize` gets the present size of the terminal at once, and the new size after each change. */
  constructor(onSize: (size: TerminalSize) => void) {
    const { stdout } = process;
    this.#resize = () => {
      const { columns, rows } = stdout;
      // If the output is not a terminal, it has no size.
      if (columns > 0 && rows > 0) {
        onSize({ columns, rows });
      }
    };
    this.#rawMode = new RawMode();
    stdout.on('resize', this.#resize);
    this.#resize();
  }

  [Symbol.dispose](): void {
    process.stdout.off('resize', this.#resize);
    this.#rawMode[Symbol.dispose]();
  }
}

interface Execution {
  readonly name: string;
  readonly command: readonly string[];
  /** Whether the command reads the standard input. */
  readonly stdin: boolean;
  /** Whether the command gets the terminal of the user. */
  readonly tty: boolean;
}

/** Runs the command. @throws ProgramEnded with the exit code of the command if it is not 0; CommandError; ApiError. */
export async function exec(
  terminal: Terminal,
  globals: Globals,
  { name, command, stdin, tty }: Execution,
): Promise<void> {
  if (tty && !process.stdin.isTTY) {
    throw new CommandError('--tty: the standard input is not a terminal. Leave out -t', EXIT.usage);
  }
  const input = stdin || tty;
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    await runningVM(cluster, name, signal);
    const path = streamPath(cluster, name, 'exec', [
      ...command.map((word) => ['command', word] as const),
      ['stdin', input],
      ['stdout', true],
      ['stderr', !tty],
      ['tty', tty],
    ]);
    await runSession(cluster, { name, path, tty, input }, signal);
  });
}

/** Writes a picture of the screen into the file. @throws CommandError when the host makes no picture; ApiError. */
export async function screenshot(
  terminal: Terminal,
  globals: Globals,
  { name, file }: { name: string; file: string },
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace, watches } = cluster;
    await runningVM(cluster, name, signal);
    await writeFile(file, await takePicture(watches, { namespace, name }, signal));
  });
  terminal.out(`Wrote the screen of vm ${name} to ${file}\n`);
}

/**
 * Script for a shell of the guest, with the user and the key as parameters. The user itself writes the file: root could be led to another
 * file by a link in the home of the user. A key that the file has already is not added again.
 */
export const ADD_KEY_SCRIPT = `export BERTH_KEY="$2"
exec su -s /bin/sh "$1" -c '
set -eu
umask 077
mkdir -p "$HOME/.ssh"
file="$HOME/.ssh/authorized_keys"
touch "$file"
grep -qxF -e "$BERTH_KEY" "$file" && exit 0
if [ -n "$(tail -c 1 "$file")" ]; then echo >>"$file"; fi
printf "%s\\n" "$BERTH_KEY" >>"$file"
'`;

/**
 * Adds public SSH keys to the running guest through its guest agent. The guest must have a shell and su, as Linux has.
 *
 * @throws ProgramEnded with the exit code of the guest, whose message is already on the error stream; CommandError; ApiError.
 */
export async function addKeys(
  terminal: Terminal,
  globals: Globals,
  { name, keys, user: given }: { name: string; keys: readonly string[]; user: string | undefined },
): Promise<void> {
  const { sshUser } = await readSettings(terminal.environment);
  const user = given || sshUser || DEFAULT_USER;
  // Each key is a parameter of one call, because the host takes only a few KiB of parameters.
  for (const key of keys) {
    const command = ['/bin/sh', '-c', ADD_KEY_SCRIPT, 'sh', user, key];
    await exec(terminal, globals, { name, command, stdin: false, tty: false });
  }
  terminal.out(
    `Added ${keys.length === 1 ? 'a key' : `${keys.length} keys`} for user ${user} to vm ${name}\n`,
  );
}

/**
 * Shows the console until the user leaves it or the machine ends. If the standard input is not a terminal, it is sent to the console only
 * if `stdin` is true.
 */
export async function connectConsole(
  terminal: Terminal,
  globals: Globals,
  { name, stdin }: { name: string; stdin: boolean },
): Promise<void> {
  const { signal } = terminal;
  // Without a terminal, Node.js does not set `isTTY`.
  const { isTTY: tty = false } = process.stdin as { isTTY?: boolean };
  const input = stdin || tty;
  await withCluster(terminal, globals, async (cluster) => {
    await runningVM(cluster, name, signal);
    const path = streamPath(cluster, name, 'attach', [
      ['stdin', input],
      ['stdout', true],
      ['stderr', false],
      ['tty', tty],
    ]);
    await runSession(cluster, { name, path, tty, input, ...(tty && { leave: untilLeave }) }, signal);
  });
  if (tty) {
    terminal.err(`\nLeft the console of VM ${name}\n`);
  }
}

/** Returns a stream that passes on the typed characters until the user types Ctrl+]. Then it calls `leave`. */
function untilLeave(leave: () => void): Transform {
  return new Transform({
    transform(chunk: Buffer, _, done) {
      const end = chunk.indexOf(CONSOLE_ESCAPE);
      if (end === -1) {
        done(null, chunk);
        return;
      }
      leave();
      done();
    },
  });
}

export interface LogFlags {
  readonly follow?: boolean;
  /** Number of last lines to show. */
  readonly tail?: number;
  /** Largest age of a line in seconds. */
  readonly since?: number;
}

export async function logs(
  terminal: Terminal,
  globals: Globals,
  { name, flags }: { name: string; flags: LogFlags },
): Promise<void> {
  const { signal } = terminal;
  const { follow = false, tail, since } = flags;
  const shown = process.stdout.isTTY ? shownOnTerminal() : (chunk: Buffer) => chunk;
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await getNamed(cluster, VM_KIND, name, signal);
    const path = streamPath(cluster, name, 'log', [
      ['follow', follow],
      ...(tail === undefined ? [] : [['tailLines', tail] as const]),
      ...(since === undefined ? [] : [['sinceSeconds', since] as const]),
    ]);
    try {
      for await (const chunk of await cluster.watches.stream(path, signal)) {
        if (!process.stdout.write(shown(chunk))) {
          await once(process.stdout, 'drain', { signal });
        }
      }
    } catch (error) {
      signal.throwIfAborted();
      throw withoutPod(error, name);
    }
    if (follow) {
      await requireEnd(cluster, vm, signal);
    }
  });
}

/**
 * Checks after the end of a followed log that the machine of the VM has ended, too. If the API server loses the connection to the host, for
 * example during an upgrade of the agent, the API server ends the log in the same way.
 *
 * @throws CommandError when the VM still has a machine; ApiError.
 */
async function requireEnd(
  { client, namespace }: UserCluster,
  { metadata: { name, uid } }: VM,
  signal: AbortSignal,
): Promise<void> {
  const vm = await unlessMissing(client.get(VMS, { namespace, name }, { signal }));
  const { metadata, status } = vm ?? {};
  // A VM with a recorded failure can still have the phase Stopping. A VM on a lost host has Failed without a record.
  const hasFailed = status?.failure !== undefined || status?.phase === 'Failed';
  if (metadata?.uid === uid && metadata?.deletionTimestamp === undefined && !hasFailed) {
    throw new CommandError(
      `The log of VM ${name} ended, but the VM still exists. Run the command again`,
      EXIT.noAnswer,
    );
  }
}

/**
 * Returns a function that removes control characters from each piece of the log. Otherwise, guests could control the terminal of a user who
 * only reads the log.
 */
function shownOnTerminal(): (chunk: Buffer) => string {
  const decoder = new StringDecoder();
  return (chunk) => printableLines(decoder.write(chunk));
}
