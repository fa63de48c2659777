/** Runs a command in a VM through its guest agent. */
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { runningVM, streamPath } from '../streams/machine.ts';
import { runSession } from '../streams/session.ts';
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
