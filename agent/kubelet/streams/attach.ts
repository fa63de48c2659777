/** Serves `kubectl attach`, which connects a caller to the serial console of a machine. */
import { type Duplex, Transform, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { messageOf } from '../../../base/errors.ts';
import { type CommandSession, failure, type Status, SUCCESS } from './session.ts';

/** The character of Ctrl+]. kubectl has no key to leave a console, so the agent uses the key of other hypervisors' consoles. */
const LEAVE = 0x1d;

/**
 * Connects the caller to the console, until the caller leaves or the machine ends. With `tty`, the caller has a terminal. Ctrl+C in this
 * terminal goes to the guest, and Ctrl+] ends the session.
 */
export async function attach(
  session: CommandSession,
  console: Duplex,
  { name, tty }: { name: string; tty: boolean },
): Promise<void> {
  const left = new AbortController();
  const options = { signal: AbortSignal.any([session.signal, left.signal]), end: false };
  const { stdin, stdout = sink() } = session;
  if (tty) {
    stdout.write(`Connected to the console of VM ${name}. Press Ctrl+] to leave.\r\n`);
  }
  const keys = tty ? [untilLeave(() => left.abort())] : [];
  const input = typeInto(console, stdin && pipeline([stdin, ...keys, console], options));
  const [output] = await Promise.allSettled([pipeline(console, stdout, options)]);
  const hasLeft = left.signal.aborted;
  left.abort();
  console.destroy();
  await input;
  await session.finish(statusOf(output, session.signal, hasLeft));
}

/**
 * Waits for the end of the caller's input, and then lets another caller type. The session continues, because a caller can send some lines
 * from a pipe and then only read. If a caller's program is killed, the API server ends the input at once, but can keep the session for a
 * minute. Other callers need not wait for that minute. This function handles errors of the input as soon as they occur, because the output
 * can end much later.
 */
async function typeInto(console: Duplex, input: Promise<void> | undefined): Promise<void> {
  await Promise.allSettled([input]);
  console.end();
}

function statusOf(output: PromiseSettledResult<void>, lost: AbortSignal, hasLeft: boolean): Status {
  if (output.status === 'fulfilled' || hasLeft) {
    return SUCCESS;
  }
  return failure(messageOf(lost.aborted ? lost.reason : output.reason));
}

/** Passes on the caller's input up to the first Ctrl+], and then calls `leave`. */
function untilLeave(leave: () => void): Transform {
  return new Transform({
    transform(chunk: Buffer, _, done) {
      const end = chunk.indexOf(LEAVE);
      if (end === -1) {
        done(null, chunk);
        return;
      }
      done(null, chunk.subarray(0, end));
      leave();
    },
  });
}

/** Returns a stream that drops the output, for a caller who did not ask for output. */
function sink(): Writable {
  return new Writable({ write: (_chunk, _encoding, done) => done() });
}
