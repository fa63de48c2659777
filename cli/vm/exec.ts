/** Runs programs in VMs, and attaches to their consoles. */
import { Transform } from 'node:stream';
import { CONSOLE_ESCAPE } from '../../api/v1alpha1/names.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { runningVM, streamPath } from './machine.ts';
import { runSession } from './session.ts';
import type { Terminal } from '../terminal.ts';

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
