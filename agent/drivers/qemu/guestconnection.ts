/**
 * Connection to the QEMU guest agent of one machine: JSON lines over a virtio port. No answer is trusted. A guest can send any bytes, so each
 * command states the largest answer that it accepts. A longer or more complex answer is refused while it arrives. See `base/json.ts` for the
 * reason.
 */
import { randomInt } from 'node:crypto';
import type { Socket } from 'node:net';
import * as z from 'zod';
import { JsonCheck, JsonError, type JsonLimits } from '../../../base/json.ts';
import { ByteCollector } from '../../../base/lines.ts';
import { connectTo, withSocketPath } from '../../processes/process.ts';
import { FILES } from './state.ts';

const NEWLINE = 0x0a;
/** Byte that a guest agent sends before its answer to `guest-sync-delimited`. This byte is never a part of JSON. */
const DELIMITER = 0xff;

/** Limits of most answers. An honest one has a few hundred bytes: a number, a name, the facts about a system or one sentence. */
const SHORT_ANSWER: JsonLimits = { bytes: 4 * 1024, items: 64 };

/** Reads one line. Both functions throw JsonError for a line that is not accepted. */
export interface LineReader {
  /** Takes the next bytes of the line, without the line end. */
  push(piece: Buffer): void;
  /** Returns the value of the complete line. */
  end(): unknown;
}

/** Line of the guest agent: its value, or the error if the line was refused, or `unread` if it is empty or nobody asked for it. */
export type Line = { value: unknown } | { refused: JsonError } | 'unread';

/** Reads a line that contains JSON. */
export class JsonLine implements LineReader {
  readonly #check: JsonCheck;
  readonly #collector = new ByteCollector();

  constructor(limits = SHORT_ANSWER) {
    this.#check = new JsonCheck(limits);
  }

  push(piece: Buffer): void {
    this.#check.push(piece);
    this.#collector.add(piece);
  }

  end(): unknown {
    return this.#check.parse(this.#collector.take());
  }
}

/** Splits the bytes of a guest agent into lines. */
export class AnswerReader {
  readonly #next: () => LineReader | undefined;
  /** Reader of the line that has begun, or `unread` if the bytes of the line are dropped. Undefined before the first byte of a line. */
  #line: LineReader | 'unread' | undefined;
  /** Whether the first delimiter has arrived. All bytes before the first delimiter are ignored, because they answer an earlier client. */
  #delimited = false;

  /** `next` is called at the beginning of each line, and returns the reader of this line. Without a reader, the line is not read. */
  constructor(next: () => LineReader | undefined) {
    this.#next = next;
  }

  /** Yields the lines that this chunk completes. A refused line is yielded at once, and as `unread` when it is complete. */
  *push(chunk: Buffer): Generator<Line, void> {
    let start = 0;
    for (let end = chunk.indexOf(DELIMITER); end >= 0; end = chunk.indexOf(DELIMITER, start)) {
      yield* this.#lines(chunk.subarray(start, end));
      // The delimiter drops the line that has begun. That line is the incomplete answer to an earlier client.
      this.#line = undefined;
      this.#delimited = true;
      start = end + 1;
    }
    yield* this.#lines(chunk.subarray(start));
  }

  *#lines(bytes: Buffer): Generator<Line, void> {
    if (!this.#delimited) {
      return;
    }
    let start = 0;
    for (let end = bytes.indexOf(NEWLINE); end >= 0; end = bytes.indexOf(NEWLINE, start)) {
      yield* this.#read(bytes.subarray(start, end));
      yield this.#complete();
      start = end + 1;
    }
    yield* this.#read(bytes.subarray(start));
  }

  *#read(piece: Buffer): Generator<Line, void> {
    if (piece.length === 0) {
      return;
    }
    this.#line ??= this.#next() ?? 'unread';
    if (this.#line === 'unread') {
      return;
    }
    try {
      this.#line.push(piece);
    } catch (error) {
      this.#line = 'unread';
      yield refusalOf(error);
    }
  }

  #complete(): Line {
    const line = this.#line ?? 'unread';
    this.#line = undefined;
    if (line === 'unread') {
      return line;
    }
    try {
      return { value: line.end() };
    } catch (error) {
      return refusalOf(error);
    }
  }
}

/** @throws the error itself when it is not a JsonError. */
function refusalOf(error: unknown): Line {
  if (error instanceof JsonError) {
    return { refused: error };
  }
  throw error;
}

/**
 * Time limit of a guest agent's first answer. A guest agent answers in milliseconds, or in tenths of a second if the guest is emulated and
 * busy. If a guest has no guest agent, each copy of its disk waits until this time is over.
 */
const SYNC_TIMEOUT_MILLISECONDS = 3_000;
/**
 * Limit of the random numbers in the command guest-sync-delimited. The command takes any 64-bit number. But in JSON, JavaScript reads only
 * numbers up to 53 bits exactly, and `randomInt` makes numbers of at most 48 bits.
 */
const SYNC_ID_LIMIT = 2 ** 48 - 1;
/**
 * Default limit of the bytes that the client reads from one connection. Honest answers have a few hundred bytes. The limit protects the
 * agent's processor time from a hostile guest that writes without end.
 */
const RECEIVE_LIMIT_BYTES = 1024 * 1024;
/**
 * Largest number of lines in a row that are not answers to commands. If the guest agent did not run for a long time, it first sends a few
 * hundred answers to earlier clients. The limit protects the agent's processor time from a hostile guest that sends millions of short
 * lines.
 */
const UNASKED_LINES = 1_024;
/** Limit of an error's text. An error of a guest agent is one sentence. A longer text is cut before it is logged. */
const ERROR_LIMIT_CHARACTERS = 500;

const messageSchema = z.object({
  return: z.unknown().optional(),
  error: z.object({ desc: z.string() }).optional(),
});

type Answer = { value: unknown } | { refusal: string } | { closed: string };

export interface CommandOptions {
  timeoutMilliseconds: number;
  arguments?: Record<string, unknown>;
  signal?: AbortSignal | undefined;
  /** Returns the reader of the answer. The default reads a short answer. */
  reader?: () => LineReader;
}

/** Command whose answer has not arrived yet. */
interface Expected {
  take: (answer: Answer) => void;
  reader: () => LineReader;
}

/** Error that is thrown when the guest agent answers a command with an error. */
export class GuestAgentRefusal extends Error {
  override readonly name = 'GuestAgentRefusal';
}

/** Connection to a guest agent. {@link GuestConnection.open} creates a connection only if the guest agent answers. */
export class GuestConnection {
  readonly #socket: Socket;
  readonly #reader = new AnswerReader(() => this.#nextReader());
  /**
   * Commands whose answers have not arrived yet. Answers have no id, and come in the order of the commands. A command whose time limit is
   * over stays in this list, because its answer can come later.
   */
  readonly #expected: Expected[] = [];
  #synced: ((id: unknown) => boolean) | undefined;
  /** Number of lines received since the last answer to a command. */
  #unaskedLines = 0;
  /** Reason why the connection is closed; undefined while it is open. */
  #closed: string | undefined;

  private constructor(socket: Socket, receiveLimitBytes: number) {
    this.#socket = socket;
    socket.on('error', (error) =>
      this.#end(`The connection to the guest agent was closed: ${error.message}`),
    );
    for (const event of ['end', 'close']) {
      socket.on(event, () => this.#end('The connection to the guest agent was closed'));
    }
    socket.on('data', (chunk: Buffer) => {
      if (socket.bytesRead > receiveLimitBytes) {
        socket.destroy(new Error(`the guest sent more than ${receiveLimitBytes} bytes`));
      } else {
        this.#read(chunk);
      }
    });
  }

  /**
   * Connects to the guest agent. The connection alone does not show that the guest has a guest agent, because QEMU accepts connections in
   * any case. So the function waits for an answer, and returns undefined when no guest agent answers in time.
   *
   * @throws a system error when no hypervisor listens; the signal's reason when the signal aborted.
   */
  static async open(
    folder: string,
    { signal, receiveLimitBytes = RECEIVE_LIMIT_BYTES }: { signal?: AbortSignal; receiveLimitBytes?: number },
  ): Promise<GuestConnection | undefined> {
    signal?.throwIfAborted();
    const socket = await withSocketPath(folder, FILES.guestAgent, connectTo);
    const connection = new GuestConnection(socket, receiveLimitBytes);
    try {
      if (await connection.#sync(signal)) {
        return connection;
      }
    } catch (error) {
      connection.close();
      throw error;
    }
    connection.close();
    return undefined;
  }

  /** Number of bytes that the guest has sent so far. */
  get receivedBytes(): number {
    return this.#socket.bytesRead;
  }

  close(): void {
    this.#socket.destroy();
  }

  /**
   * Executes a command, and returns the guest agent's answer. An answer that comes after the time limit is ignored.
   *
   * @throws GuestAgentRefusal when the guest agent answers with an error; Error when the guest agent does not answer in time.
   */
  async execute(command: string, options: CommandOptions): Promise<unknown> {
    const { timeoutMilliseconds } = options;
    const answer = await this.tryExecute(command, options);
    if (answer === undefined) {
      throw new Error(`The guest agent did not answer ${command} within ${timeoutMilliseconds} ms`);
    }
    return answer.value;
  }

  /** Executes a command as {@link execute} does, but returns undefined when no answer comes in time. */
  async tryExecute(command: string, options: CommandOptions): Promise<{ value: unknown } | undefined> {
    if (this.#closed !== undefined) {
      throw new Error(`${command} was not sent: ${this.#closed}`);
    }
    const { promise, resolve } = Promise.withResolvers<Answer>();
    this.#expected.push({ take: resolve, reader: options.reader ?? (() => new JsonLine()) });
    this.#send({ execute: command, arguments: options.arguments });
    const answer = await within(promise, options.timeoutMilliseconds, options.signal);
    if (answer === undefined || 'value' in answer) {
      return answer;
    }
    throw 'refusal' in answer
      ? new GuestAgentRefusal(`${command} failed: ${answer.refusal}`)
      : new Error(`${command} failed: ${answer.closed}`);
  }

  /**
   * Sends a random number that the guest agent repeats, and returns whether this answer came in time. Answers to earlier clients come
   * first, and the number shows which answer is for this client. Before the number, the function sends a delimiter. The delimiter makes the
   * guest agent drop an incomplete command that an earlier client sent.
   */
  async #sync(signal: AbortSignal | undefined): Promise<boolean> {
    const id = randomInt(SYNC_ID_LIMIT);
    const { promise, resolve } = Promise.withResolvers<true>();
    this.#synced = (value) => {
      if (value === id) {
        resolve(true);
      }
      return value === id;
    };
    this.#socket.write(Buffer.of(DELIMITER));
    this.#send({ execute: 'guest-sync-delimited', arguments: { id } });
    return (await within(promise, SYNC_TIMEOUT_MILLISECONDS, signal)) ?? false;
  }

  /**
   * Closes this object, and makes all unanswered commands fail. If several events report the end of the connection, the first event gives
   * the reason.
   */
  #end(why: string): void {
    this.#closed ??= why;
    for (const { take } of this.#expected.splice(0)) {
      take({ closed: this.#closed });
    }
  }

  #send(message: Record<string, unknown>): void {
    this.#socket.write(`${JSON.stringify(message)}\n`);
  }

  #read(chunk: Buffer): void {
    try {
      for (const line of this.#reader.push(chunk)) {
        if (this.#socket.destroyed) {
          return;
        }
        this.#receive(line);
      }
    } catch (error) {
      // This code runs in an event handler, so no caller can catch its errors. Instead, the function closes the connection, and gives the
      // error as the reason.
      this.#socket.destroy(error instanceof Error ? error : new Error(String(error)));
    }
  }

  /** Returns the reader of the line that begins now; undefined if no command waits for a line. */
  #nextReader(): LineReader | undefined {
    return this.#synced === undefined ? this.#expected[0]?.reader() : new JsonLine();
  }

  /** Handles a line from the guest. @throws Error when the line is not an answer, or when too many lines came without a command. */
  #receive(line: Line): void {
    this.#unaskedLines += 1;
    if (this.#unaskedLines > UNASKED_LINES) {
      throw new Error(`the guest agent sent more than ${UNASKED_LINES} lines that are not answers`);
    }
    if (this.#synced !== undefined) {
      // A refused line is the answer to an earlier client.
      if (
        line !== 'unread' &&
        'value' in line &&
        this.#synced(messageSchema.safeParse(line.value).data?.return)
      ) {
        this.#synced = undefined;
      }
      return;
    }
    if (line !== 'unread') {
      this.#answer(line);
    }
  }

  #answer(line: Exclude<Line, 'unread'>): void {
    if ('refused' in line && line.refused.fault !== 'syntax') {
      this.#expected.shift()?.take({ refusal: `the answer ${line.refused.message}` });
      return;
    }
    const message = 'value' in line ? messageSchema.safeParse(line.value).data : undefined;
    if (message === undefined) {
      throw new Error('the guest agent sent a line that is not an answer');
    }
    this.#unaskedLines = 0;
    const { error } = message;
    this.#expected
      .shift()
      ?.take(
        error === undefined
          ? { value: message.return }
          : { refusal: error.desc.slice(0, ERROR_LIMIT_CHARACTERS) },
      );
  }
}

/** Resolves like `promise`, or with undefined when the time is over. Rejects when `signal` aborts. */
async function within<T>(
  promise: Promise<T>,
  milliseconds: number,
  signal: AbortSignal | undefined,
): Promise<T | undefined> {
  signal?.throwIfAborted();
  const over = Promise.withResolvers<undefined>();
  const abort = () => over.reject(signal?.reason);
  const timer = setTimeout(() => over.resolve(undefined), milliseconds);
  signal?.addEventListener('abort', abort);
  try {
    return await Promise.race([promise, over.promise]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', abort);
  }
}
