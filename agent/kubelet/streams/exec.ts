/** Serves `kubectl exec`: the guest agent runs a command, and the caller gets the output when the command has ended. */
import { addAbortSignal, type Readable } from 'node:stream';
import { StreamRefused } from '../../drivers/driver.ts';
import { type CommandSession, exited, failure, type Status } from './session.ts';
import type { StreamTarget } from './target.ts';

/**
 * Limit of the standard input in bytes. The guest agent takes the input only as a whole, so the input is read to its end before the command
 * begins.
 */
const INPUT_BYTES = 1024 * 1024;

/** Runs the command and sends its output and its exit code. @throws Error when the agent itself fails. */
export async function execute(
  session: CommandSession,
  target: StreamTarget,
  [path = '', ...rest]: readonly string[],
): Promise<void> {
  await session.finish(await run(session, target, { path, arguments: rest }));
}

async function run(
  { stdin, stdout, stderr, signal }: CommandSession,
  target: StreamTarget,
  command: { path: string; arguments: readonly string[] },
): Promise<Status> {
  try {
    const input = stdin === undefined ? undefined : await readAll(addAbortSignal(signal, stdin));
    const result = await target.execute({ ...command, ...(input && { input }), signal });
    stdout?.write(result.stdout);
    stderr?.write(result.stderr);
    if (result.truncated) {
      stderr?.write('The output was too long for the guest agent and is cut off\n');
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

/** Reads the whole input. @throws StreamRefused when the input is longer than {@link INPUT_BYTES}. */
async function readAll(stdin: Readable): Promise<Buffer> {
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
    bytes += chunk.copy(input, bytes);
  }
  return input.subarray(0, bytes);
}
