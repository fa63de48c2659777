/**
 * Asks over ADB whether Android has booted in an emulator. The agent implements the ADB protocol itself, so the host needs no `adb`
 * program.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { messageOf } from '../../base/errors.ts';
import {
  ADB_VERSION,
  type AdbMessage,
  AdbProtocolError,
  encodeMessage,
  LARGEST_PAYLOAD,
  readMessages,
} from './messages.ts';

/**
 * Time limit of one query over ADB, from the connection to the answer. An emulator on this host answers in milliseconds, or in about a
 * second while Android boots on an emulated processor.
 */
const QUESTION_MILLISECONDS = 5_000;
/** Limit of the output of `getprop` in bytes. The expected output is `1` and an end of line. */
const OUTPUT_BYTES = 256;
/** Number that the agent gives to the only stream of a connection. ADB allows any number except 0. */
const STREAM = 1;

const BANNER = Buffer.from('host::\0');
const QUESTION = Buffer.from('shell:getprop sys.boot_completed\0');

export type BootAnswer =
  | { kind: 'booted' }
  /** ADB answers that Android has not booted yet. */
  | { kind: 'booting' }
  /** ADB answers that it requires a key. The agent has no key. */
  | { kind: 'wantsKey' }
  /** The emulator accepts no connection, closes the connection, or does not answer in time. `message` gives the cause. */
  | { kind: 'silent'; message: string }
  /** The peer does not follow the ADB protocol. */
  | { kind: 'wrong'; message: string };

/**
 * Asks the emulator once whether Android has booted. If the signal aborts, the query ends early with the answer `silent`. The promise never
 * rejects.
 */
export async function askBooted(
  { host, port }: { host: string; port: number },
  signal: AbortSignal,
): Promise<BootAnswer> {
  const socket = connect({ host, port, noDelay: true });
  // This listener does nothing, because the loop that reads the messages reports the socket's errors. Without a listener, an error before
  // or after that loop would end the agent.
  socket.on('error', () => undefined);
  const end = (): void => {
    socket.destroy(new Error(`ADB did not answer within ${QUESTION_MILLISECONDS / 1000} s`));
  };
  const timer = setTimeout(end, QUESTION_MILLISECONDS);
  signal.addEventListener('abort', end, { once: true });
  try {
    await once(socket, 'connect');
    return await converse(socket);
  } catch (error) {
    const kind = error instanceof AdbProtocolError ? 'wrong' : 'silent';
    return { kind, message: messageOf(error) };
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', end);
    socket.destroy();
  }
}

/**
 * Exchanges the messages of one query. @throws AdbProtocolError when the peer does not follow the ADB protocol; Error when the connection
 * ends or fails.
 */
async function converse(socket: Socket): Promise<BootAnswer> {
  const messages = readMessages(socket);
  socket.write(encodeMessage('CNXN', ADB_VERSION, LARGEST_PAYLOAD, BANNER));
  const welcome = await next(messages);
  if (welcome.command === 'AUTH' || welcome.command === 'STLS') {
    return { kind: 'wantsKey' };
  }
  demand(welcome, ['CNXN']);
  socket.write(encodeMessage('OPEN', STREAM, 0, QUESTION));
  const opened = demand(await next(messages), ['OKAY', 'CLSE']);
  // ADB can refuse to run `getprop` while Android boots, so a refusal counts as empty output.
  const output = opened.command === 'CLSE' ? '' : await outputOf(socket, messages, opened.arg0);
  return { kind: output.trim() === '1' ? 'booted' : 'booting' };
}

/** Returns the whole output of `getprop`. `remote` is the number that the peer gave to the stream of this output. */
async function outputOf(
  socket: Socket,
  messages: AsyncGenerator<AdbMessage, void>,
  remote: number,
): Promise<string> {
  let output = '';
  for (;;) {
    const message = demand(await next(messages), ['WRTE', 'CLSE']);
    if (message.command === 'CLSE') {
      return output;
    }
    output += message.payload.toString('latin1');
    if (output.length > OUTPUT_BYTES) {
      throw new AdbProtocolError(`The output of getprop is longer than ${OUTPUT_BYTES} bytes`);
    }
    socket.write(encodeMessage('OKAY', STREAM, remote));
  }
}

async function next(messages: AsyncGenerator<AdbMessage, void>): Promise<AdbMessage> {
  const { value } = await messages.next();
  if (value === undefined) {
    throw new Error('ADB closed the connection');
  }
  return value;
}

/**
 * Returns the message if its command is one of `expected`. @throws AdbProtocolError when the message has another command or is for another
 * stream.
 */
function demand(message: AdbMessage, expected: readonly AdbMessage['command'][]): AdbMessage {
  const isOfStream = message.command === 'CNXN' || message.arg1 === STREAM;
  if (!expected.includes(message.command) || !isOfStream) {
    throw new AdbProtocolError(`ADB answered ${message.command} instead of ${expected.join(' or ')}`);
  }
  return message;
}
