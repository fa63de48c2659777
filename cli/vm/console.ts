/** Connects to the serial console of a VM. */
import { Transform } from 'node:stream';
import { withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { runningVM, streamPath } from '../streams/machine.ts';
import { runSession } from '../streams/session.ts';
import type { Terminal } from '../terminal.ts';

/** The character of Ctrl+]. The agent also leaves at it, but this command must also leave if the connection hangs. */
const LEAVE = 0x1d;

/** Shows the console until the user leaves or the machine ends. Without a terminal, the input counts only with `stdin`. */
export async function connectConsole(
  terminal: Terminal,
  globals: Globals,
  { name, stdin }: { name: string; stdin: boolean },
): Promise<void> {
  const { signal } = terminal;
  // Node.js leaves the field away without a terminal.
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

/** Passes on what the user types, until the user types Ctrl+]. */
function untilLeave(leave: () => void): Transform {
  return new Transform({
    transform(chunk: Buffer, _, done) {
      const end = chunk.indexOf(LEAVE);
      if (end === -1) {
        done(null, chunk);
        return;
      }
      leave();
      done();
    },
  });
}
