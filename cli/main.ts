#!/usr/bin/env node
/** `node cli/main.ts ARGUMENTS` is the command `berth`. It has the name under which it was started. */
import { basename } from 'node:path';
import { codeOf } from '../base/errors.ts';
import { EXIT, Interrupted } from './errors.ts';
import { run } from './program.ts';
import { writerTo } from './terminal.ts';

/** Names of the script in the project and in the npm package. */
const SCRIPTS: readonly string[] = ['main.ts', 'start.cjs'];

const interrupt = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    if (interrupt.signal.aborted) {
      process.exit(EXIT.interrupted);
    }
    interrupt.abort(new Interrupted());
  });
}
for (const stream of [process.stdout, process.stderr]) {
  // If the reader is gone, for example `head`, the rest is not wanted. With other errors, for example of a full disk, it is lost.
  stream.on('error', (error) => process.exit(codeOf(error) === 'EPIPE' ? EXIT.done : EXIT.failed));
}

// The bundle is of type CommonJS, which cannot wait here.
void run(process.argv.slice(2), {
  name: nameOf(process.argv[1] ?? ''),
  environment: process.env,
  out: writerTo(process.stdout),
  err: (text) => void process.stderr.write(text),
  isForPeople: process.stderr.isTTY,
  signal: interrupt.signal,
}).then((code) => (process.exitCode = code));

/** Returns the name in help and messages. A plug-in of kubectl is called by two words. */
function nameOf(file: string): string {
  const name = basename(file);
  return SCRIPTS.includes(name) ? 'berth' : name.replace(/^kubectl-/, 'kubectl ');
}
