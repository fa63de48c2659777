#!/usr/bin/env node
/**
 * Runs the command `berth`, for example with `node cli/main.ts ARGUMENTS`. Help and messages show the name with which the user started the
 * command.
 */
import { basename } from 'node:path';
import { codeOf } from '../base/errors.ts';
import { COMPLETE_VERB } from './completion.ts';
import { EXIT, type EndingSignal, Interrupted } from './errors.ts';
import { run } from './program.ts';
import { writerTo } from './terminal.ts';

/** File names of this script in the project and in the npm package. */
const SCRIPTS: readonly string[] = ['main.ts', 'start.cjs'];

const interrupt = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, endBy);
}
// A program that reads the output can end before it has read everything, for example `head`. In this case, nobody needs the rest of the
// output, so the command succeeds. After any other error, for example if the disk is full, the rest of the output is lost, so the command
// fails.
process.stdout.on('error', (error) => process.exit(codeOf(error) === 'EPIPE' ? EXIT.done : EXIT.failed));
// If nobody reads the messages, the exit code still tells the result. So the command continues, and ends with the code of its own result.
process.stderr.on('error', () => undefined);

// The build turns this file into a CommonJS module, so `await` is not possible at the top level.
const args = process.argv.slice(2);
void run(args, {
  name: nameOf(process.argv[1] ?? ''),
  environment: process.env,
  out: writerTo(process.stdout),
  err: (text) => void process.stderr.write(text),
  isForPeople: process.stderr.isTTY,
  columns: () => process.stderr.columns,
  signal: interrupt.signal,
  interrupt: endBy,
}).then((code) => {
  process.exitCode = code;
  if (interrupt.signal.aborted || args[0] === COMPLETE_VERB) {
    // An attempt to connect, or a credential plug-in, would keep this process running. The process ends when the last message is written.
    process.stderr.write('', () => process.exit());
  }
});

/** Interrupts the command. The second signal ends the process at once. */
function endBy(cause: EndingSignal): void {
  const interrupted = new Interrupted(cause);
  if (interrupt.signal.aborted) {
    process.exit(interrupted.exitCode);
  }
  interrupt.abort(interrupted);
}

/**
 * Returns the name of this command for help and messages. For a file `kubectl-berth`, the name is `kubectl berth`, because users type these
 * words to start the plug-in of kubectl.
 */
function nameOf(file: string): string {
  const name = basename(file);
  return SCRIPTS.includes(name) ? 'berth' : name.replace(/^kubectl-/, 'kubectl ');
}
