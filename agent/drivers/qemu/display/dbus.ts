/**
 * Writes the D-Bus calls that QEMU's display needs, and reads any D-Bus message in little-endian order. A hostile guest can control its
 * QEMU. So the size of a message has a limit, and bytes that are not such a message are an error.
 */
import { DBusFormatError, padding, Reader, STRUCTURE_BYTES, type Value, Writer } from './dbusvalues.ts';

/** Limit of one message. The longest answers of QEMU's display have a few hundred bytes. */
export const MESSAGE_LIMIT_BYTES = 64 * 1024;
const LITTLE_ENDIAN = 0x6c;
const PROTOCOL_VERSION = 1;
const FIXED_HEADER_BYTES = 16;
/** Position of the number that gives the length of the header's fields in bytes. The fields follow this number as an array. */
const FIELDS_POSITION = 12;

export const MESSAGE_TYPE = { call: 1, answer: 2, error: 3, signal: 4 } as const;

/** Codes of the header's fields, with the D-Bus types of their values. */
const FIELDS = {
  path: { code: 1, type: 'o' },
  interface: { code: 2, type: 's' },
  member: { code: 3, type: 's' },
  error: { code: 4, type: 's' },
  answers: { code: 5, type: 'u' },
  signature: { code: 8, type: 'g' },
} as const;

/** Call of a method. `type` is the D-Bus signature of `values`. */
export interface Call {
  path: string;
  interface: string;
  member: string;
  type: string;
  values: readonly (number | string)[];
}

export interface Message {
  type: number;
  path: string | undefined;
  interface: string | undefined;
  member: string | undefined;
  /** Name of the error, if this message refuses a call. */
  error: string | undefined;
  /** Serial number of the call that this message answers. */
  answers: number | undefined;
  signature: string;
  body: Buffer;
  /** Size of the whole message in bytes. */
  size: number;
}

/** Returns the bytes of a call. `serial` is a number other than 0. QEMU's answer to the call contains the same number. */
export function encodeCall(serial: number, call: Call): Buffer {
  const body = new Writer();
  for (const [index, value] of call.values.entries()) {
    body.value(call.type[index] ?? '', value);
  }
  const fields = new Writer();
  const header = { path: call.path, interface: call.interface, member: call.member, signature: call.type };
  for (const [name, value] of Object.entries(header)) {
    const { code, type } = FIELDS[name as keyof typeof header];
    fields.align(STRUCTURE_BYTES);
    fields.value('y', code);
    fields.value('g', type);
    fields.value(type, value);
  }
  const [bodyBytes, fieldBytes] = [body.bytes(), fields.bytes()];
  const message = new Writer();
  message.add(Buffer.from([LITTLE_ENDIAN, MESSAGE_TYPE.call, 0, PROTOCOL_VERSION]));
  for (const number of [bodyBytes.length, serial, fieldBytes.length]) {
    message.value('u', number);
  }
  message.add(fieldBytes);
  message.align(STRUCTURE_BYTES);
  message.add(bodyBytes);
  return message.bytes();
}

/** Cuts a stream of bytes into messages. */
export class MessageSplitter {
  #bytes = Buffer.alloc(0);

  /** Returns the messages that this chunk completes. @throws DBusFormatError when the stream is not D-Bus or a message is too long. */
  push(chunk: Buffer): Message[] {
    this.#bytes = Buffer.concat([this.#bytes, chunk]);
    const messages: Message[] = [];
    for (let size = sizeOf(this.#bytes); size !== undefined; size = sizeOf(this.#bytes)) {
      messages.push(decode(this.#bytes.subarray(0, size)));
      this.#bytes = this.#bytes.subarray(size);
    }
    return messages;
  }
}

/**
 * Returns the size in bytes of the first message in `bytes`, or undefined if this message is not complete. @throws DBusFormatError when the
 * message is not D-Bus or too long.
 */
function sizeOf(bytes: Buffer): number | undefined {
  if (bytes.length < FIXED_HEADER_BYTES) {
    return undefined;
  }
  if (bytes[0] !== LITTLE_ENDIAN || bytes[3] !== PROTOCOL_VERSION) {
    throw new DBusFormatError('The message is not D-Bus in little-endian order');
  }
  const header = FIXED_HEADER_BYTES + bytes.readUInt32LE(FIELDS_POSITION);
  const size = header + padding(header, STRUCTURE_BYTES) + bytes.readUInt32LE(4);
  if (size > MESSAGE_LIMIT_BYTES) {
    throw new DBusFormatError(
      `The message has ${size} bytes, but at most ${MESSAGE_LIMIT_BYTES} are allowed`,
    );
  }
  return bytes.length < size ? undefined : size;
}

function decode(bytes: Buffer): Message {
  const reader = new Reader(bytes, FIELDS_POSITION);
  const fields = new Map(reader.value('a(yv)') as [number, Value][]);
  reader.align(STRUCTURE_BYTES);
  const text = (name: keyof typeof FIELDS): string | undefined => {
    const value = fields.get(FIELDS[name].code);
    return typeof value === 'string' ? value : undefined;
  };
  const answers = fields.get(FIELDS.answers.code);
  return {
    type: bytes[1] ?? 0,
    path: text('path'),
    interface: text('interface'),
    member: text('member'),
    error: text('error'),
    answers: typeof answers === 'number' ? answers : undefined,
    signature: text('signature') ?? '',
    body: bytes.subarray(reader.at),
    size: bytes.length,
  };
}

/** Returns the values of a message. @throws DBusFormatError when the values do not have the form that the message's signature states. */
export function readBody({ signature, body }: Pick<Message, 'signature' | 'body'>): Value[] {
  return new Reader(body, 0).values(signature, 0);
}
