/** Runs a command in a guest through its guest agent. A guest agent has no streams, so the output is fetched when the command has ended. */
import * as z from 'zod';
import { hasCode } from '../../../../base/errors.ts';
import { pause } from '../../../../base/time.ts';
import { type GuestCommand, type GuestCommandResult, StreamRefused } from '../../driver.ts';
import type { GuestAgent } from './guestagent.ts';
import { type GuestConnection, GuestAgentRefusal } from './connection.ts';
import { Output, StatusLine } from './status.ts';

/** Limit of a command's input. The guest agent gets the input in one message, and keeps the whole input in the guest's memory. */
const INPUT_LIMIT_BYTES = 1024 * 1024;
/**
 * Limit of the bytes that the agent reads for one command. A guest agent sends up to 16 MiB for each of two streams, as base64 in one line.
 * The agent keeps nearly 4 MiB of each stream (status.ts).
 */
const RECEIVE_LIMIT_BYTES = 48 * 1024 * 1024;
/** Time limit of an answer without output of a program. The limit is long, because a busy emulated guest starts a program slowly. */
const ANSWER_TIMEOUT_MILLISECONDS = 10_000;
/** Time limit of an answer that contains output of a program. An emulated guest needs 5 s for 22 MB of output. */
const OUTPUT_TIMEOUT_MILLISECONDS = 60_000;
/**
 * Time that the agent keeps its first connection open to wait for the end of a command. Most commands end within this time. The time is
 * short, because other work with the guest agent waits meanwhile.
 */
const SHORT_COMMAND_MILLISECONDS = 500;
/** Time between two checks whether a short command has ended. */
const SHORT_INTERVAL_MILLISECONDS = 20;
/** Time between two checks whether a long command has ended. Each check opens a connection. */
const LONG_INTERVAL_MILLISECONDS = 500;
/**
 * If this number of checks in a row get no answer, the agent stops waiting for the command. One check without an answer is not enough,
 * because a busy guest can answer late.
 */
const SILENCE_LIMIT = 5;

const isUnreachable = hasCode('ENOENT', 'ECONNREFUSED', 'EAGAIN');
const SILENT = 'The guest agent of the machine does not answer';
const INVALID =
  'The guest agent of the machine gave no valid answer. Check in the guest whether the command still runs';

const startedSchema = z.object({ pid: z.number().int() });
const statusSchema = z.object({
  exited: z.boolean(),
  exitcode: z.number().int().optional(),
  signal: z.number().int().optional(),
  'out-data': z.instanceof(Output).optional(),
  'err-data': z.instanceof(Output).optional(),
  'out-truncated': z.boolean().optional(),
  'err-truncated': z.boolean().optional(),
});
type Status = z.infer<typeof statusSchema>;

/**
 * Runs a command in the guest, and resolves when the command has ended. If the signal aborts, the command continues in the guest.
 *
 * @throws StreamRefused when the guest agent does not answer, refuses the command or gives no valid answer. The function also throws
 * StreamRefused when the input is too large, or when urgent work with the guest agent interrupts the command.
 *
 * @throws the signal's reason when the signal aborted.
 */
export async function executeInGuest(agent: GuestAgent, command: GuestCommand): Promise<GuestCommandResult> {
  const { signal, input } = command;
  if (input !== undefined && input.length > INPUT_LIMIT_BYTES) {
    throw new StreamRefused(`The standard input of the command is longer than ${INPUT_LIMIT_BYTES} bytes`);
  }
  let budget = RECEIVE_LIMIT_BYTES;
  const use = async <T>(
    work: (connection: GuestConnection, signal: AbortSignal) => Promise<T>,
  ): Promise<T | undefined> =>
    await agent.use({ signal, receiveLimitBytes: budget }, async (connection, either) => {
      try {
        return connection && (await work(connection, either));
      } finally {
        budget -= connection?.receivedBytes ?? 0;
      }
    });
  const begun = await refusing(
    use(async (connection, either) => await begin(connection, { ...command, signal: either })),
    signal,
  );
  if (begun === undefined) {
    throw new StreamRefused(SILENT);
  }
  let { status } = begun;
  for (let silences = 0; !status.exited; ) {
    await pause(LONG_INTERVAL_MILLISECONDS, signal);
    const next = await refusing(
      use(async (connection, either) => await ask(connection, begun.pid, { ...command, signal: either })),
      signal,
    );
    silences = next === undefined ? silences + 1 : 0;
    if (silences === SILENCE_LIMIT) {
      throw new StreamRefused(
        'The guest agent of the machine no longer answers. Check in the guest whether the command still runs',
      );
    }
    status = next ?? status;
  }
  return resultOf(status);
}

/** Starts the command, and waits a moment for its end. Returns the command's process id in the guest, and its last known state. */
async function begin(
  connection: GuestConnection,
  command: GuestCommand,
): Promise<{ pid: number; status: Status }> {
  const { path, arguments: parameters, input, signal } = command;
  const answer = await connection.execute('guest-exec', {
    timeoutMilliseconds: ANSWER_TIMEOUT_MILLISECONDS,
    arguments: {
      path,
      arg: parameters,
      'capture-output': true,
      'input-data': input?.toString('base64'),
    },
    signal,
  });
  const { pid } = startedSchema.parse(answer);
  const deadline = performance.now() + SHORT_COMMAND_MILLISECONDS;
  let status = await ask(connection, pid, command);
  while (!status.exited && performance.now() < deadline) {
    await pause(SHORT_INTERVAL_MILLISECONDS, signal);
    status = await ask(connection, pid, command);
  }
  return { pid, status };
}

async function ask(
  connection: GuestConnection,
  pid: number,
  { reserve, signal }: GuestCommand,
): Promise<Status> {
  const timeoutMilliseconds = OUTPUT_TIMEOUT_MILLISECONDS;
  const reader = () => new StatusLine(reserve);
  const options = { timeoutMilliseconds, arguments: { pid }, signal, reader };
  return statusSchema.parse(await connection.execute('guest-exec-status', options));
}

/**
 * Turns each error of the guest and its guest agent into a StreamRefused, whose message is for users. If the guest agent's socket cannot be
 * reached, the message says that the guest agent does not answer.
 */
async function refusing<T>(answer: Promise<T>, signal: AbortSignal): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    if (signal.aborted || error instanceof StreamRefused) {
      throw error;
    }
    const otherwise = isUnreachable(error) ? SILENT : INVALID;
    const message = error instanceof GuestAgentRefusal ? error.message : otherwise;
    throw new StreamRefused(message, { cause: error });
  }
}

/** Returns the result of an ended command. If a signal ended the command, the exit code is 128 plus the signal's number, as in a shell. */
function resultOf(status: Status): GuestCommandResult {
  const { exitcode, signal = 0, 'out-data': stdout, 'err-data': stderr } = status;
  const isCut = [stdout, stderr].some((output) => output?.cut);
  return {
    exitCode: exitcode ?? 128 + signal,
    stdout: stdout?.pieces ?? [],
    stderr: stderr?.pieces ?? [],
    truncated: isCut || status['out-truncated'] === true || status['err-truncated'] === true,
  };
}
