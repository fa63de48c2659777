/**
 * Writes the D-Bus calls that QEMU's display needs, and reads any D-Bus message in little-endian order. A hostile guest can control its
 * QEMU. So the size of a message and the nesting of its values have limits, and bytes that are not such a message are an error.
 */
/**
 * Writes the D-Bus calls that QEMU's display needs, and reads any D-Bus message in little-endian order. A hostile guest can control its
 * QEMU. So the size of a message has a limit, and bytes that are not such a message are an error.
 */

/** Largest number of levels of nested values. QEMU's answers have three levels: a list of pairs with values of any type. */
const NESTING_LIMIT = 8;
/** Alignment in bytes of structures, of pairs, and of the end of a message's header. */
const STRUCTURE_BYTES = 8;
const COUNT_BYTES = 4;

/** Value of a message. Structures, pairs and arrays become lists. A variant becomes the value that it contains. */
type Value = number | bigint | string | Value[];

/** Error of a message that is not D-Bus, or exceeds a limit. */
export class DBusFormatError extends Error {
  override readonly name = 'DBusFormatError';
}

/** D-Bus types of numbers. The key is the letter of a type. The value has the size in bytes, and functions that read and write a number. */
const NUMBERS: Readonly<
  Record<
    string,
    {
      bytes: number;
      read: (from: Buffer, at: number) => number | bigint;
      write?: (to: Buffer, value: number) => number;
    }
  >
> = {
  y: { bytes: 1, read: (from, at) => from.readUInt8(at), write: (to, value) => to.writeUInt8(value) },
  b: { bytes: 4, read: (from, at) => from.readUInt32LE(at) },
  n: { bytes: 2, read: (from, at) => from.readInt16LE(at) },
  q: { bytes: 2, read: (from, at) => from.readUInt16LE(at), write: (to, value) => to.writeUInt16LE(value) },
  i: { bytes: 4, read: (from, at) => from.readInt32LE(at), write: (to, value) => to.writeInt32LE(value) },
  u: { bytes: 4, read: (from, at) => from.readUInt32LE(at), write: (to, value) => to.writeUInt32LE(value) },
  h: { bytes: 4, read: (from, at) => from.readUInt32LE(at) },
  x: { bytes: 8, read: (from, at) => from.readBigInt64LE(at) },
  t: { bytes: 8, read: (from, at) => from.readBigUInt64LE(at) },
  d: { bytes: 8, read: (from, at) => from.readDoubleLE(at) },
};

/**
 * D-Bus types of texts: strings (`s`), paths of objects (`o`) and signatures (`g`). In a message, a number before each text gives the
 * text's length. For each type of text, this table has the D-Bus type of that number.
 */
const TEXT_LENGTHS: Readonly<Record<string, 'u' | 'y'>> = { s: 'u', o: 'u', g: 'y' };

/** Writes values one after the other. */
export class DBusWriter {
  readonly #parts: Buffer[] = [];
  #length = 0;

  add(bytes: Buffer): void {
    this.#parts.push(bytes);
    this.#length += bytes.length;
  }

  align(bytes: number): void {
    this.add(Buffer.alloc(padding(this.#length, bytes)));
  }

  /** Writes a number or a text. @throws Error when this class cannot write values of this type. */
  value(type: string, value: number | string): void {
    if (typeof value === 'string') {
      this.#text(type, value);
      return;
    }
    const number = NUMBERS[type];
    if (number?.write === undefined) {
      throw new Error(`The D-Bus type ${type} is not supported in calls`);
    }
    this.align(number.bytes);
    const bytes = Buffer.alloc(number.bytes);
    number.write(bytes, value);
    this.add(bytes);
  }

  #text(type: string, value: string): void {
    const bytes = Buffer.from(value);
    this.value(TEXT_LENGTHS[type] ?? 'u', bytes.length);
    this.add(bytes);
    this.add(Buffer.alloc(1));
  }

  bytes(): Buffer {
    return Buffer.concat(this.#parts);
  }
}

/** Reads the values of a message one after the other. The first value begins at the position `at`. */
class Reader {
  at: number;
  readonly #bytes: Buffer;

  constructor(bytes: Buffer, at: number) {
    this.#bytes = bytes;
    this.at = at;
  }

  align(bytes: number): void {
    this.#take(padding(this.at, bytes));
  }

  values(signature: string, depth: number): Value[] {
    const values: Value[] = [];
    for (let start = 0; start < signature.length; ) {
      const end = endOfType(signature, start);
      values.push(this.value(signature.slice(start, end), depth));
      start = end;
    }
    return values;
  }

  value(type: string, depth = 0): Value {
    if (depth > NESTING_LIMIT) {
      throw new DBusFormatError('The values of a message are nested too deeply');
    }
    const number = NUMBERS[type];
    if (number !== undefined) {
      this.align(number.bytes);
      return number.read(this.#bytes, this.#take(number.bytes));
    }
    const length = TEXT_LENGTHS[type];
    if (length !== undefined) {
      return this.#text(length);
    }
    switch (type[0]) {
      case 'v':
        return this.#any(depth);
      case 'a':
        return this.#array(type.slice(1), depth);
      case '(':
      case '{':
        return this.#structure(type.slice(1, -1), depth);
      default:
        throw new DBusFormatError('A message has a value of an unknown type');
    }
  }

  #text(length: 'u' | 'y'): string {
    const bytes = Number(this.value(length));
    const start = this.#take(bytes + 1);
    return this.#bytes.toString('utf8', start, start + bytes);
  }

  #any(depth: number): Value {
    const type = this.#text('y');
    if (type === '' || endOfType(type, 0) !== type.length) {
      throw new DBusFormatError('A D-Bus variant does not have exactly one type');
    }
    return this.value(type, depth + 1);
  }

  /**
   * Reads a structure. An empty structure is an error, because the D-Bus standard forbids it. An empty structure would also have no bytes,
   * so the loop that reads an array of empty structures would never end.
   */
  #structure(types: string, depth: number): Value[] {
    if (types === '') {
      throw new DBusFormatError('A message has an empty structure');
    }
    this.align(STRUCTURE_BYTES);
    return this.values(types, depth + 1);
  }

  #array(type: string, depth: number): Value[] {
    const bytes = Number(this.value('u'));
    this.align(alignmentOf(type));
    const end = this.at + bytes;
    const items: Value[] = [];
    while (this.at < end) {
      items.push(this.value(type, depth + 1));
    }
    if (this.at !== end) {
      throw new DBusFormatError('The last item of a D-Bus array reaches beyond the end of the array');
    }
    return items;
  }

  /**
   * Moves the reader's position forward by `bytes` bytes, and returns the position before the move. @throws DBusFormatError when the
   * message has fewer than `bytes` bytes left.
   */
  #take(bytes: number): number {
    const start = this.at;
    if (start + bytes > this.#bytes.length) {
      throw new DBusFormatError('The message ends within a value');
    }
    this.at = start + bytes;
    return start;
  }
}

/** Returns the number of bytes from `length` to the next multiple of `alignment`. */
function padding(length: number, alignment: number): number {
  return (alignment - (length % alignment)) % alignment;
}

function alignmentOf(type: string): number {
  switch (type[0]) {
    case '(':
    case '{':
      return STRUCTURE_BYTES;
    case 'g':
    case 'v':
      return 1;
    default:
      return NUMBERS[type]?.bytes ?? COUNT_BYTES;
  }
}

/** Returns the position in `signature` directly after the type that begins at `start`. @throws DBusFormatError when the type has no end. */
function endOfType(signature: string, start: number): number {
  let depth = 0;
  for (let at = start; at < signature.length; at += 1) {
    const letter = signature[at] ?? '';
    depth += '({'.includes(letter) ? 1 : 0;
    depth -= ')}'.includes(letter) ? 1 : 0;
    if (depth < 0) {
      break;
    }
    if (depth === 0 && letter !== 'a') {
      return at + 1;
    }
  }
  throw new DBusFormatError('A D-Bus signature has an incomplete type');
}

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
  const body = new DBusWriter();
  for (const [index, value] of call.values.entries()) {
    body.value(call.type[index] ?? '', value);
  }
  const fields = new DBusWriter();
  const header = { path: call.path, interface: call.interface, member: call.member, signature: call.type };
  for (const [name, value] of Object.entries(header)) {
    const { code, type } = FIELDS[name as keyof typeof header];
    fields.align(STRUCTURE_BYTES);
    fields.value('y', code);
    fields.value('g', type);
    fields.value(type, value);
  }
  const [bodyBytes, fieldBytes] = [body.bytes(), fields.bytes()];
  const message = new DBusWriter();
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
    for (let size = parseSize(this.#bytes); size !== undefined; size = parseSize(this.#bytes)) {
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
function parseSize(bytes: Buffer): number | undefined {
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
