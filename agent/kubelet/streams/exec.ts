/** Serves `kubectl exec`: the guest agent runs a command, and the caller gets the output when the command has ended. */
import { addAbortSignal, type Readable } from 'node:stream';
import { type GuestCommand, type Reserve, StreamRefused } from '../../drivers/driver.ts';
import { type CommandSession, exited, failure, type Status } from './session.ts';
import type { StreamTarget } from './target.ts';

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
): Promise<Status> {
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
