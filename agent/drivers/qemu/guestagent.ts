/**
 * Client of the QEMU guest agent, for guests that run one. The client freezes a guest's file systems for a moment. The protocol is
 * JSON lines over a virtio port.
 */
import { randomInt } from 'node:crypto';
import type { Socket } from 'node:net';
import * as z from 'zod';
import { readLines } from '../../../base/lines.ts';
import { connectTo, withSocketPath } from '../../processes/socket.ts';
import { FILES } from './state.ts';

/**
 * Time limit of a guest agent's first answer. It answers in milliseconds, or in tenths of a second in a busy emulated guest. If a
 * guest has no agent, each copy of its disk waits this long.
 */
const SYNC_TIMEOUT_MILLISECONDS = 3_000;
/**
 * Time limit of a request to freeze the guest's file systems. The guest first writes out its cached data, and its programs stand still
 * meanwhile. A copy without a freeze is better than a longer standstill.
 */
const FREEZE_TIMEOUT_MILLISECONDS = 8_000;
/** Time limit of a request to thaw. The guest agent executes commands one by one, so a thaw may have to wait for a late freeze. */
const THAW_TIMEOUT_MILLISECONDS = 10_000;
/**
 * Limit of attempts to thaw a guest after a freeze, each over a new connection. After an abort there is only one attempt, because a
 * caller waits to stop the guest. A later call of {@link thaw} tries again.
 */
const THAW_ATTEMPTS = 3;
/**
 * Limit of the random numbers in the command guest-sync. It takes any 64-bit number, but JSON is exact up to 53 bits and randomInt up to
 * 48 bits.
 */
const SYNC_ID_LIMIT = 2 ** 48 - 1;
/**
 * Limit of the bytes that the client reads from one connection, and so of one line. Real answers have some hundred bytes. A hostile
 * guest that writes without end cannot use more memory of the agent.
 */
const RECEIVE_LIMIT_BYTES = 1024 * 1024;
/** Limit of an error's text. An error of a guest agent is a sentence; a longer text is cut before it gets into a log. */
const ERROR_LIMIT_CHARACTERS = 500;
const SILENT = 'The guest agent does not answer, and file systems may be frozen';

export interface FreezeOptions {
  folder: string;
  signal: AbortSignal;
  /**
   * Called with true before a guest is asked to freeze, and with false when the guest has confirmed the thaw. Between both calls
   * the guest may need {@link thaw}.
   */
  remember: (mayBeFrozen: boolean) => Promise<void>;
}

export interface Freeze {
  /** Whether the guest confirmed, before the work began, that its file systems were frozen. */
  frozen: boolean;
  /** Errors of the freeze and of the thaw. */
  problems: string[];
}

/**
 * Does `work` while the guest's file systems are frozen. If no guest agent answers, or if it cannot freeze them, `work` is done
 * without a freeze. Otherwise the guest agent always gets a request to thaw before the promise settles, even if its answer to the
 * freeze is late.
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

/** Requests a thaw of file systems when it is unknown if a freeze has ended. @throws Error when the guest does not confirm the thaw. */
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

/** Connection to a guest agent that has just answered. */
class Port {
  readonly #socket: Socket;
  /**
   * Receivers of the answers that have not come yet. Answers have no id, and come in the order of the commands. An answer after its
   * timeout comes, too.
   */
  readonly #expected: ((answer: Answer) => void)[] = [];
  #synced: ((id: unknown) => boolean) | undefined;
  /** Reason why the connection is closed; undefined while it is open. */
  #closed: string | undefined;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('error', (error) =>
      this.#end(`The connection to the guest agent was closed: ${error.message}`),
    );
    for (const event of ['end', 'close']) {
      socket.on(event, () => this.#end('The connection to the guest agent was closed'));
    }
    socket.on('data', () => {
      if (socket.bytesRead > RECEIVE_LIMIT_BYTES) {
        socket.destroy(new Error(`the guest sent more than ${RECEIVE_LIMIT_BYTES} bytes`));
      }
    });
    readLines(socket, RECEIVE_LIMIT_BYTES, (line) => this.#receive(line));
  }

  /**
   * Connects to the guest agent. Returns undefined when no agent answers in time, because QEMU keeps the socket open whether the
   * guest has an agent or not.
   */
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

  /**
   * Executes a command. After a timeout, the answer may still come later. @throws Error when the agent refuses or does not answer
   * in time.
   */
  async execute(command: string, timeoutMilliseconds: number, signal?: AbortSignal): Promise<unknown> {
    if (this.#closed !== undefined) {
      throw new Error(`${command} was not sent: ${this.#closed}`);
    }
    const { promise, resolve } = Promise.withResolvers<Answer>();
    this.#expected.push(resolve);
    this.#send({ execute: command });
    const answer = await within(promise, timeoutMilliseconds, signal);
    if (answer === undefined) {
      throw new Error(`The guest agent did not answer ${command} within ${timeoutMilliseconds} ms`);
    }
    if ('error' in answer) {
      throw new Error(`${command} failed: ${answer.error}`);
    }
    return answer.value;
  }

  /**
   * Requests an answer with a random number, and returns whether that answer came in time. Answers to an earlier client come first, so
   * only the answer with this number is accepted.
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
    this.#send({ execute: 'guest-sync', arguments: { id } });
    return (await within(promise, SYNC_TIMEOUT_MILLISECONDS, signal)) ?? false;
  }

  /** Makes all commands without an answer fail. Of several reasons, an error or a close, the first is kept. */
  #end(why: string): void {
    this.#closed ??= why;
    for (const take of this.#expected.splice(0)) {
      take({ error: this.#closed });
    }
  }

  #send(message: Record<string, unknown>): void {
    this.#socket.write(`${JSON.stringify(message)}\n`);
  }

  /** Handles a line from the guest. An error ends the connection. @throws Error when the line is not an answer to a command. */
  #receive(line: string): void {
    if (this.#synced !== undefined) {
      if (this.#synced(parse(line)?.return)) {
        this.#synced = undefined;
      }
      return;
    }
    const message = parse(line);
    if (message === undefined) {
      throw new Error('the guest agent sent a line that is no answer');
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

/** Parses a line from the guest, which may be any text. Returns undefined if the text is not an answer. */
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
