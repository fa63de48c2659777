/** The QEMU guest agent, where a guest runs one: holds its file systems still for a moment. JSON lines over a virtio port. */
import { randomInt } from 'node:crypto';
import type { Socket } from 'node:net';
import * as z from 'zod';
import { readLines } from '../../../base/lines.ts';
import { connectTo, withSocketPath } from '../../machines/socket.ts';
import { FILES } from './state.ts';

/** An agent answers in milliseconds, in a busy emulated guest in tenths of a second. Without one, each copy waits this long. */
const SYNC_TIMEOUT_MILLISECONDS = 3_000;
/** The guest writes out what it holds back, and its programs stand still for as long: rather no freeze than a longer one. */
const FREEZE_TIMEOUT_MILLISECONDS = 8_000;
/** The agent works through its commands one by one, so a thaw may have to wait for the end of a late freeze. */
const THAW_TIMEOUT_MILLISECONDS = 10_000;
/** Each over a connection of its own. Only one where somebody waits for the end, to stop the guest: {@link thaw} tries again. */
const THAW_ATTEMPTS = 3;
/** guest-sync takes any 64-bit number; JSON is exact up to 53 bits, randomInt up to 48. */
const SYNC_ID_LIMIT = 2 ** 48 - 1;
/**
 * Of a whole connection, so of a line too: its few answers have some hundred bytes. A guest that writes without end costs no
 * more than this for each connection.
 */
const RECEIVE_LIMIT_BYTES = 1024 * 1024;
/** An error of an agent is a sentence; what is longer goes into no log. */
const ERROR_LIMIT_CHARACTERS = 500;
const SILENT = 'the guest agent does not answer: file systems may be frozen';

export interface FreezeOptions {
  folder: string;
  signal: AbortSignal;
  /** Told before a guest is asked to freeze, and when it said that it thawed: in between it may need {@link thaw}. */
  remember: (mayBeFrozen: boolean) => Promise<void>;
}

export interface Freeze {
  /** The guest said that it froze file systems before the work began. */
  frozen: boolean;
  /** What went wrong with the freeze or the thaw. */
  problems: string[];
}

/**
 * Does `work` while the guest's file systems are frozen; without a freeze where no guest agent answers, or it cannot.
 * Whatever happened, also when the guest's answer to the freeze is late: they are thawed before this settles.
 */
export async function whileFrozen(options: FreezeOptions, work: () => Promise<void>): Promise<Freeze> {
  const { folder, signal, remember } = options;
  const port = await Port.open(folder, signal);
  const freeze: Freeze = { frozen: false, problems: [] };
  if (port === undefined) {
    await work();
    return freeze;
  }
  try {
    await remember(true);
    try {
      const count = await port.execute('guest-fsfreeze-freeze', FREEZE_TIMEOUT_MILLISECONDS, signal);
      freeze.frozen = typeof count === 'number' && count > 0;
    } catch (error) {
      signal.throwIfAborted();
      freeze.problems.push(String(error));
    }
    await work();
  } finally {
    try {
      await thawOver(port, folder, signal.aborted ? 1 : THAW_ATTEMPTS);
      await remember(false);
    } catch (error) {
      freeze.problems.push(String(error));
    }
  }
  return freeze;
}

/** Ends a freeze that was not ended for certain. @throws Error when the guest does not say that it did. */
export async function thaw(folder: string): Promise<void> {
  const port = await Port.open(folder);
  if (port === undefined) {
    throw new Error(SILENT);
  }
  await thawOver(port, folder, 1);
}

async function thawOver(first: Port, folder: string, attempts: number): Promise<void> {
  let port: Port | undefined = first;
  for (let attempt = 1; ; attempt += 1) {
    try {
      if (port === undefined) {
        throw new Error(SILENT);
      }
      await port.execute('guest-fsfreeze-thaw', THAW_TIMEOUT_MILLISECONDS);
      return;
    } catch (error) {
      if (attempt === attempts) {
        throw error;
      }
    } finally {
      port?.close();
    }
    port = await Port.open(folder);
  }
}

const messageSchema = z.object({
  return: z.unknown().optional(),
  error: z.object({ desc: z.string() }).optional(),
});
type Message = z.infer<typeof messageSchema>;

type Answer = { value: unknown } | { error: string };

/** A connection to an agent that has just answered. */
class Port {
  readonly #socket: Socket;
  /** Answers come in the order of the commands and carry no id; those of commands given up are still to come. */
  readonly #expected: ((answer: Answer) => void)[] = [];
  #synced: ((id: unknown) => boolean) | undefined;
  /** Set once it is. */
  #closed: string | undefined;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('error', (error) => this.#end(`the connection was closed: ${error.message}`));
    socket.on('end', () => this.#end('the connection was closed'));
    socket.on('close', () => this.#end('the connection was closed'));
    socket.on('data', () => {
      if (socket.bytesRead > RECEIVE_LIMIT_BYTES) {
        socket.destroy(new Error('the guest writes without end'));
      }
    });
    readLines(socket, RECEIVE_LIMIT_BYTES, (line) => this.#receive(line));
  }

  /** Undefined when no agent answers in time: QEMU holds the socket open whether the guest has one or not. */
  static async open(folder: string, signal?: AbortSignal): Promise<Port | undefined> {
    signal?.throwIfAborted();
    const port = new Port(await withSocketPath(folder, FILES.guestAgent, connectTo));
    try {
      if (await port.#sync(signal)) {
        return port;
      }
    } catch (error) {
      port.close();
      throw error;
    }
    port.close();
    return undefined;
  }

  close(): void {
    this.#socket.destroy();
  }

  /** @throws Error when the agent refuses, or gives no answer in time; its answer may then still come. */
  async execute(command: string, timeoutMilliseconds: number, signal?: AbortSignal): Promise<unknown> {
    if (this.#closed !== undefined) {
      throw new Error(`${command}: ${this.#closed}`);
    }
    const { promise, resolve } = Promise.withResolvers<Answer>();
    this.#expected.push(resolve);
    this.#send({ execute: command });
    const answer = await within(promise, timeoutMilliseconds, signal);
    if (answer === undefined) {
      throw new Error(`${command}: no answer within ${timeoutMilliseconds} ms`);
    }
    if ('error' in answer) {
      throw new Error(`${command}: ${answer.error}`);
    }
    return answer.value;
  }

  /** What an earlier client was still owed comes first: only the answer with our number counts. */
  async #sync(signal: AbortSignal | undefined): Promise<boolean> {
    const id = randomInt(SYNC_ID_LIMIT);
    const { promise, resolve } = Promise.withResolvers<true>();
    this.#synced = (value) => {
      if (value === id) {
        resolve(true);
      }
      return value === id;
    };
    this.#send({ execute: 'guest-sync', arguments: { id } });
    return (await within(promise, SYNC_TIMEOUT_MILLISECONDS, signal)) ?? false;
  }

  /** Of errors and closes only the first counts. */
  #end(why: string): void {
    this.#closed ??= why;
    for (const take of this.#expected.splice(0)) {
      take({ error: this.#closed });
    }
  }

  #send(message: Record<string, unknown>): void {
    this.#socket.write(`${JSON.stringify(message)}\n`);
  }

  /** @throws Error for what is no answer to a command: the connection ends then. */
  #receive(line: string): void {
    if (this.#synced !== undefined) {
      if (this.#synced(parse(line)?.return)) {
        this.#synced = undefined;
      }
      return;
    }
    const message = parse(line);
    if (message === undefined) {
      throw new Error('the guest agent answered with what is no answer');
    }
    const take = this.#expected.shift();
    const { error } = message;
    take?.(
      error === undefined
        ? { value: message.return }
        : { error: error.desc.slice(0, ERROR_LIMIT_CHARACTERS) },
    );
  }
}

/** A guest may write anything there: undefined for what is no answer. */
function parse(line: string): Message | undefined {
  try {
    return messageSchema.safeParse(JSON.parse(line)).data;
  } catch (error) {
    if (error instanceof SyntaxError) {
      return undefined;
    }
    throw error;
  }
}

/** Undefined when the time is over; rejects when `signal` aborts. */
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
