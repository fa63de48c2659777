/**
 * Client of QEMU's machine protocol (QMP): JSON lines over a unix socket, which serves one client at a time. A hostile guest can control
 * its QEMU, so no message is trusted, and what QEMU sends without a call has a limit. The client of the D-Bus display uses the same limits.
 */
import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import * as z from 'zod';
import { hasCode, undefinedIf } from '../../../base/errors.ts';
import { type JsonLimits, parseJson } from '../../../base/json.ts';
import { readLines } from '../../../base/lines.ts';
import { pause } from '../../../base/time.ts';
import { connectTo, withSocketPath } from '../../processes/process.ts';

/**
 * The agent reads at most this number of items of a list. A guest with many containers has a few dozen network interfaces, and QEMU has
 * fewer devices, block nodes and properties.
 */
const LIST_LIMIT = 256;

/**
 * Returns the schema of a list. The schema checks only the first {@link LIST_LIMIT} items, and drops the rest. A sender can send a list of
 * 500,000 invalid items. The schema makes an error for each invalid item, so a check of the whole list would block the agent for seconds.
 */
export function beginningOf<T extends z.ZodType>(item: T) {
  return z.preprocess((value) => (Array.isArray(value) ? value.slice(0, LIST_LIMIT) : value), z.array(item));
}

/**
 * Time between two attempts to connect. QEMU opens its socket about 10 ms after its start. A much longer time between attempts would delay
 * each start.
 */
const CONNECT_INTERVAL_MILLISECONDS = 3;
/** Time limit of a command. QEMU answers in a few milliseconds, or in seconds on an overloaded host. */
const COMMAND_TIMEOUT_MILLISECONDS = 30_000;

export interface QmpEvent {
  event: string;
  data: Record<string, unknown>;
}

/** Limits of one line. The longest answers, lists of block nodes, have a few dozen KiB and 1,500 items. */
const LINE_LIMITS: JsonLimits = { bytes: 256 * 1024, items: 4_096 };
/** Limit of an error's text. An error of QEMU is one sentence. A longer text is cut before it gets into logs and statuses. */
export const ERROR_LIMIT_CHARACTERS = 1_000;

const messageSchema = z.object({
  QMP: z.unknown().optional(),
  id: z.number().int().optional(),
  return: z.unknown().optional(),
  error: z.object({ class: z.string(), desc: z.string() }).optional(),
  event: z.string().optional(),
  data: z.record(z.string(), z.unknown()).optional(),
});
const statusSchema = z.object({ status: z.string() });

/** Error of a command: QEMU refused the command or gave an invalid answer, or the connection is closed. */
export class QmpError extends Error {
  override readonly name = 'QmpError';
}

interface QmpEvents {
  event: [QmpEvent];
  close: [];
}

export class QmpConnection extends EventEmitter<QmpEvents> {
  readonly #socket: Socket;
  readonly #calls = new Calls(QmpError, 'QEMU sent too many messages that are not answers to commands');
  #closed = false;
  #whyClosed = 'The connection to QEMU was closed';

  private constructor(socket: Socket) {
    super();
    this.#socket = socket;
    socket.on('error', (error) => {
      this.#whyClosed = `The connection to QEMU was closed: ${error.message}`;
      socket.destroy();
    });
    socket.on('close', () => this.#end());
    readLines(socket, LINE_LIMITS.bytes, (line) => this.#receive(line));
  }

  /**
   * Connects to QEMU and leaves QMP's negotiation mode. Tries again until QEMU listens, `signal` aborts or the time is over. QEMU serves
   * one client at a time. So if another client is connected, the function waits until QEMU serves the new connection.
   *
   * @throws QmpError when QEMU does not answer.
   */
  static async connect(
    folder: string,
    name: string,
    options: { timeoutMilliseconds: number; signal?: AbortSignal },
  ): Promise<QmpConnection> {
    const deadline = AbortSignal.timeout(options.timeoutMilliseconds);
    const signal = options.signal === undefined ? deadline : AbortSignal.any([deadline, options.signal]);
    const socket = await connectSocket(folder, name, signal);
    const connection = new QmpConnection(socket);
    const abort = () => socket.destroy();
    signal.addEventListener('abort', abort);
    try {
      await connection.execute('qmp_capabilities');
      return connection;
    } catch (error) {
      // If the socket stayed open, a hostile QEMU that refuses each negotiation would keep one socket of the agent open for each attempt.
      socket.destroy();
      throw error;
    } finally {
      signal.removeEventListener('abort', abort);
    }
  }

  /** Executes a command and returns its answer. @throws QmpError when QEMU refuses the command, or does not answer in time. */
  async execute(
    command: string,
    parameters: Record<string, unknown> = {},
    timeoutMilliseconds = COMMAND_TIMEOUT_MILLISECONDS,
  ): Promise<unknown> {
    if (this.#closed) {
      throw new QmpError(`${command} was not sent, because the connection to QEMU is closed`);
    }
    return await this.#calls.make(command, timeoutMilliseconds, (id) =>
      this.#socket.write(`${JSON.stringify({ execute: command, arguments: parameters, id })}\n`),
    );
  }

  /**
   * Executes a command and checks that its answer fits the schema. @throws QmpError when {@link execute} fails or the answer does not fit.
   */
  async ask<T>(
    command: string,
    schema: z.ZodType<T>,
    parameters: Record<string, unknown> = {},
    timeoutMilliseconds = COMMAND_TIMEOUT_MILLISECONDS,
  ): Promise<T> {
    const answer = schema.safeParse(await this.execute(command, parameters, timeoutMilliseconds));
    if (!answer.success) {
      const why = z.prettifyError(answer.error).slice(0, ERROR_LIMIT_CHARACTERS);
      throw new QmpError(`QEMU gave an invalid answer to ${command}: ${why}`);
    }
    return answer.data;
  }

  /** Returns QEMU's run state, for example running, paused, shutdown, postmigrate or inmigrate. */
  async status(timeoutMilliseconds?: number): Promise<string> {
    return (await this.ask('query-status', statusSchema, {}, timeoutMilliseconds)).status;
  }

  /**
   * Resolves with the first event that `wanted` accepts. Resolves with undefined when the time is over, `signal` aborts or the
   * connection ends.
   */
  async waitForEvent(
    wanted: (event: QmpEvent) => boolean,
    { timeoutMilliseconds, signal }: { timeoutMilliseconds: number; signal: AbortSignal },
  ): Promise<QmpEvent | undefined> {
    if (this.#closed || signal.aborted) {
      return undefined;
    }
    return await new Promise((resolve) => {
      const finish = (event: QmpEvent | undefined) => {
        clearTimeout(timer);
        this.off('event', onEvent);
        this.off('close', onEnd);
        signal.removeEventListener('abort', onEnd);
        resolve(event);
      };
      const onEvent = (event: QmpEvent) => {
        if (wanted(event)) {
          finish(event);
        }
      };
      const onEnd = () => finish(undefined);
      const timer = setTimeout(onEnd, timeoutMilliseconds);
      this.on('event', onEvent);
      this.on('close', onEnd);
      signal.addEventListener('abort', onEnd);
    });
  }

  get closed(): boolean {
    return this.#closed;
  }

  close(): void {
    this.#socket.destroy();
  }

  /**
   * Handles a line from QEMU. An error ends the connection. @throws Error when the line is not a message, or when too many lines came
   * without a command.
   */
  #receive(line: string): void {
    const message = messageSchema.parse(parseJson(line, LINE_LIMITS));
    const { event, id, error } = message;
    const call = this.#calls.answered(event === undefined ? id : undefined, line.length);
    if (event !== undefined) {
      this.emit('event', { event, data: message.data ?? {} });
    } else if (error === undefined) {
      call?.resolve(message.return);
    } else {
      call?.reject(new QmpError(error.desc.slice(0, ERROR_LIMIT_CHARACTERS)));
    }
  }

  #end(): void {
    this.#closed = true;
    this.#calls.end(this.#whyClosed);
    this.emit('close');
  }
}

async function connectSocket(folder: string, name: string, signal: AbortSignal): Promise<Socket> {
  for (;;) {
    if (signal.aborted) {
      throw new QmpError(`QEMU did not accept a connection to ${name}`);
    }
    const attempt = withSocketPath(folder, name, connectTo);
    const socket = await undefinedIf(hasCode('ENOENT', 'ECONNREFUSED', 'EAGAIN'), attempt);
    if (socket !== undefined) {
      return socket;
    }
    await pause(CONNECT_INTERVAL_MILLISECONDS);
  }
}

/**
 * Largest number of characters or bytes that QEMU may send without a call within {@link UNASKED_MILLISECONDS}. A working QEMU sends less:
 * it limits the rate of frequent events, and sends a few hundred bytes for each change of the screen's size.
 */
const UNASKED_LIMIT = 1024 * 1024;
const UNASKED_MILLISECONDS = 10_000;

interface Waiting<Answer> {
  resolve: (answer: Answer) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

export class Calls<Answer> {
  readonly #waiting = new Map<number, Waiting<Answer>>();
  readonly #error: new (
    message: string,
  ) => Error;
  readonly #flood: string;
  #last = 0;
  #unasked = { size: 0, until: 0 };

  /** `error` is the class of the errors of this protocol. `flood` is the message of the error if QEMU sends too much without a call. */
  constructor(error: new (message: string) => Error, flood: string) {
    this.#error = error;
    this.#flood = flood;
  }

  /** Calls `send` with the number of the call, and returns QEMU's answer. @throws Error when no answer comes in time. */
  async make(name: string, timeoutMilliseconds: number, send: (id: number) => void): Promise<Answer> {
    this.#last += 1;
    const id = this.#last;
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    const timer = setTimeout(() => {
      this.#waiting.delete(id);
      reject(new this.#error(`QEMU did not answer ${name} within ${timeoutMilliseconds} ms`));
    }, timeoutMilliseconds);
    this.#waiting.set(id, { resolve, reject, timer });
    send(id);
    return await promise;
  }

  /**
   * Returns the call with the number `id`, which a message of this size answers. The call no longer waits afterwards. The result is
   * undefined if no call waits for the message.
   *
   * @throws Error when QEMU sends too many messages for which no call waits.
   */
  answered(id: number | undefined, size: number): Pick<Waiting<Answer>, 'resolve' | 'reject'> | undefined {
    const call = this.#waiting.get(id ?? 0);
    if (call === undefined) {
      this.#countUnasked(size);
      return undefined;
    }
    this.#waiting.delete(id ?? 0);
    clearTimeout(call.timer);
    return call;
  }

  /** Fails all calls that still wait for an answer. */
  end(why: string): void {
    for (const { timer, reject } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(new this.#error(why));
    }
    this.#waiting.clear();
  }

  #countUnasked(size: number): void {
    const now = performance.now();
    if (now >= this.#unasked.until) {
      this.#unasked = { size: 0, until: now + UNASKED_MILLISECONDS };
    }
    this.#unasked.size += size;
    if (this.#unasked.size > UNASKED_LIMIT) {
      throw new this.#error(this.#flood);
    }
  }
}
