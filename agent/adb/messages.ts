/**
 * Writes and reads the messages of ADB. A message has a header and a payload. The header has six 32-bit numbers in little-endian order: the
 * command, two arguments, the length of the payload, the checksum of the payload, and the command with all bits inverted. The peer is not
 * trusted, so the length of a payload and the number of messages have limits.
 */
import { ByteReader } from '../../base/bytereader.ts';

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
export type AdbCommand = (typeof COMMANDS)[number];

export interface AdbMessage {
  command: AdbCommand;
  arg0: number;
  arg1: number;
  payload: Buffer;
}

/** Error for a peer that does not follow the ADB protocol. */
export class AdbProtocolError extends Error {
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
