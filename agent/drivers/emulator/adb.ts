/**
 * Asks over ADB whether Android has booted in an emulator. The agent implements the ADB protocol itself, so the host needs no `adb` program.
 * A message of ADB has a header and a payload. The header has six 32-bit numbers in little-endian order: the command, two arguments, the
 * length of the payload, the checksum of the payload, and the command with all bits inverted. The peer is not trusted, so the length of a
 * payload and the number of messages have limits.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { ByteReader } from '../../../base/bytereader.ts';
import { messageOf } from '../../../base/errors.ts';

/**
 * Version of the ADB protocol that the agent announces. Both ends then use this version, even if the peer knows a later version. Messages
 * of this version have checksums.
 */
export const ADB_VERSION = 0x01000000;
/** Largest payload of a message in bytes, in the version {@link ADB_VERSION} of the protocol. */
export const LARGEST_PAYLOAD = 4096;
/**
 * Largest number of messages that the agent accepts over one connection. One query needs four messages from the peer if the peer sends the
 * output in one message. The limit is higher, because the peer can send the output in several messages.
 */
const MOST_MESSAGES = 16;

const HEADER_BYTES = 24;
const CUT_OFF = 'The connection ended within a message';

const COMMANDS = ['CNXN', 'AUTH', 'STLS', 'OPEN', 'OKAY', 'WRTE', 'CLSE'] as const;
type AdbCommand = (typeof COMMANDS)[number];

interface AdbMessage {
  command: AdbCommand;
  arg0: number;
  arg1: number;
  payload: Buffer;
}

/** Error for a peer that does not follow the ADB protocol. */
class AdbProtocolError extends Error {
  override readonly name = 'AdbProtocolError';
}

/** Returns a message as bytes. `arg0` and `arg1` are unsigned numbers of 32 bits. */
export function encodeMessage(
  command: AdbCommand,
  arg0: number,
  arg1: number,
  payload: Buffer = Buffer.alloc(0),
): Buffer {
  const word = wordOf(command);
  const header = Buffer.alloc(HEADER_BYTES);
  for (const [index, value] of [word, arg0, arg1, payload.length, sumOf(payload), ~word >>> 0].entries()) {
    header.writeUInt32LE(value, index * 4);
  }
  return Buffer.concat([header, payload]);
}

/**
 * Reads the messages of a peer. The generator ends when `bytes` ends directly after a complete message.
 *
 * @throws AdbProtocolError when a header or checksum is wrong, a payload is too long, there are too many messages, or the bytes end within
 * a message. A wrong header is noticed before the payload arrives.
 */
export async function* readMessages(bytes: AsyncIterable<Buffer>): AsyncGenerator<AdbMessage, void> {
  const reader = new ByteReader(bytes);
  for (let count = 1; ; count += 1) {
    const header = await reader.read(HEADER_BYTES);
    if (header.length === 0) {
      return;
    }
    if (count > MOST_MESSAGES) {
      throw new AdbProtocolError(`The peer sent more than ${MOST_MESSAGES} messages`);
    }
    const { length, sum, ...parts } = parseHeader(header);
    const payload = await reader.read(length);
    if (payload.length < length) {
      throw new AdbProtocolError(CUT_OFF);
    }
    if (sumOf(payload) !== sum) {
      throw new AdbProtocolError('The peer sent a payload with a wrong checksum');
    }
    yield { ...parts, payload };
  }
}

function parseHeader(bytes: Buffer): Omit<AdbMessage, 'payload'> & { length: number; sum: number } {
  if (bytes.length < HEADER_BYTES) {
    throw new AdbProtocolError(CUT_OFF);
  }
  const at = (index: number): number => bytes.readUInt32LE(index * 4);
  const command = COMMANDS.find((one) => wordOf(one) === at(0));
  if (command === undefined || at(5) !== ~at(0) >>> 0) {
    throw new AdbProtocolError('The peer sent a header that is not a header of ADB');
  }
  const length = at(3);
  if (length > LARGEST_PAYLOAD) {
    throw new AdbProtocolError(
      `The peer sent a payload of ${length} bytes, but at most ${LARGEST_PAYLOAD} are allowed`,
    );
  }
  return { command, arg0: at(1), arg1: at(2), length, sum: at(4) };
}

/** Returns the four letters of a command as one 32-bit number. */
function wordOf(command: AdbCommand): number {
  return Buffer.from(command, 'latin1').readUInt32LE();
}

/**
 * Returns the checksum of a payload, which is the sum of its bytes. The sum fits into 32 bits, because a payload has at most 4,096 bytes.
 */
function sumOf(payload: Buffer): number {
  return payload.reduce((sum, byte) => sum + byte, 0);
}

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
