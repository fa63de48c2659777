/**
 * Serves `kubectl exec` and `kubectl attach`. For `exec`, the guest agent runs a command, and the caller gets the output when the command has
 * ended. `attach` connects a caller to the serial console of a machine.
 */
import { addAbortSignal, type Duplex, type Readable, Transform, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import {
  type GuestCommand,
  type GuestCommandResult,
  type Reserve,
  StreamRefused,
} from '../../drivers/driver.ts';
import { type CommandSession, exited, failure, type StreamStatus, SUCCESS } from './session.ts';
import { CONSOLE_ESCAPE } from '../../../api/v1alpha1/names.ts';
import { messageOf } from '../../../base/errors.ts';

/** Ways to connect to one running machine. Each function throws StreamRefused when the machine does not allow the connection. */
export interface StreamTarget {
  /** Connects to the serial console. Several connections can read the console of a machine, but only one can send input. */
  console(input: boolean): Promise<Duplex>;
  /** Connects to a TCP port of the guest. The port `SCREEN_PORT` stands for the screen of the machine. */
  port(port: number): Promise<Duplex>;
  execute(command: GuestCommand): Promise<GuestCommandResult>;
}

/**
 * Limit of the standard input in bytes. The guest agent takes the input only as a whole, so the input is read to its end before the command
 * begins.
 */
const INPUT_BYTES = 1024 * 1024;
/** Line that the caller gets after an output that is not complete. */
const CUT =
  'The output is cut off. It is too long, or other commands of this namespace hold too much output on this host\n';

/**
 * Runs the command and sends its output and its exit code. `reserve` is called before input and output are kept in memory, which lasts until
 * the promise settles.
 *
 * @throws Error when the agent itself fails.
 */
export async function execute(
  session: CommandSession,
  target: StreamTarget,
  [path = '', ...rest]: readonly string[],
  reserve: Reserve,
): Promise<void> {
  await session.finish(await run(session, target, { path, arguments: rest, reserve }));
}

async function run(
  { stdin, stdout, stderr, signal }: CommandSession,
  target: StreamTarget,
  command: Pick<GuestCommand, 'path' | 'arguments' | 'reserve'>,
): Promise<StreamStatus> {
  try {
    const input =
      stdin === undefined ? undefined : await readAll(addAbortSignal(signal, stdin), command.reserve);
    const result = await target.execute({ ...command, ...(input && { input }), signal });
    result.stdout.forEach((piece) => stdout?.write(piece));
    result.stderr.forEach((piece) => stderr?.write(piece));
    if (result.truncated) {
      stderr?.write(CUT);
    }
    return exited(result.exitCode);
  } catch (error) {
    if (signal.aborted) {
      return failure((signal.reason as Error).message);
    }
    if (error instanceof StreamRefused) {
      return failure(error.message);
    }
    throw error;
  }
}

/**
 * Reads the whole input. @throws StreamRefused when the input is longer than {@link INPUT_BYTES}, or when no memory is left for it.
 */
async function readAll(stdin: Readable, reserve: Reserve): Promise<Buffer> {
  // The bytes are copied at once, because a client can send pieces of one byte, and each kept piece would need much more memory. The system
  // provides the memory of this buffer only when bytes are written into it.
  const input = Buffer.alloc(INPUT_BYTES);
  let bytes = 0;
  for await (const chunk of stdin.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    if (bytes + chunk.length > INPUT_BYTES) {
      throw new StreamRefused(
        `The standard input is longer than ${INPUT_BYTES} bytes; copy larger files with scp`,
      );
    }
    if (!reserve(chunk.length)) {
      throw new StreamRefused(
        'Other commands of this namespace use the memory for inputs and outputs on this host; try again later',
      );
    }
    bytes += chunk.copy(input, bytes);
  }
  return input.subarray(0, bytes);
}

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

function statusOf(output: PromiseSettledResult<void>, lost: AbortSignal, hasLeft: boolean): StreamStatus {
  if (output.status === 'fulfilled' || hasLeft) {
    return SUCCESS;
  }
  return failure(messageOf(lost.aborted ? lost.reason : output.reason));
}

/** Passes on the caller's input up to the first Ctrl+], and then calls `leave`. */
function untilLeave(leave: () => void): Transform {
  return new Transform({
    transform(chunk: Buffer, _, done) {
      const end = chunk.indexOf(CONSOLE_ESCAPE);
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
