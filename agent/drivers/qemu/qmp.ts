/** QEMU's machine protocol: JSON lines over a unix socket; one client at a time. */
import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { codeOf } from '../../errors.ts';
import { connectTo, withSocketPath } from '../../machines/socket.ts';

/** QEMU makes its socket some 10 ms after it was started; a start is to cost as little more as possible. */
const CONNECT_INTERVAL_MILLISECONDS = 3;
/** Commands are answered in a few milliseconds, on an overloaded host in seconds. */
const COMMAND_TIMEOUT_MILLISECONDS = 30_000;

export interface QmpEvent {
  event: string;
  data: Record<string, unknown>;
}

interface Message {
  QMP?: unknown;
  id?: number;
  return?: unknown;
  error?: { class: string; desc: string };
  event?: string;
  data?: Record<string, unknown>;
}

interface Pending {
  resolve: (value: unknown) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

/** QEMU refused a command, or the connection is gone. */
export class QmpError extends Error {
  override readonly name = 'QmpError';
}

interface QmpEvents {
  event: [QmpEvent];
  close: [];
}

export class QmpConnection extends EventEmitter<QmpEvents> {
  readonly #socket: Socket;
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #closed = false;

  private constructor(socket: Socket) {
    super();
    this.#socket = socket;
    socket.on('error', () => socket.destroy());
    socket.on('close', () => this.#end());
    const lines = createInterface({ input: socket });
    lines.on('line', (line) => this.#receive(JSON.parse(line) as Message));
    // The socket's error comes here too.
    lines.on('error', () => socket.destroy());
  }

  /**
   * Connects and leaves negotiation mode; tries again until QEMU listens, `signal` aborts or the time is over.
   * QEMU takes one client: while another holds the socket the greeting does not come.
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
    } finally {
      signal.removeEventListener('abort', abort);
    }
  }

  async execute(command: string, parameters: Record<string, unknown> = {}): Promise<unknown> {
    if (this.#closed) throw new QmpError(`${command}: the connection is closed`);
    const id = this.#nextId;
    this.#nextId += 1;
    return await new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        reject(new QmpError(`${command}: no answer within ${COMMAND_TIMEOUT_MILLISECONDS} ms`));
      }, COMMAND_TIMEOUT_MILLISECONDS);
      this.#pending.set(id, { resolve, reject, timer });
      this.#socket.write(`${JSON.stringify({ execute: command, arguments: parameters, id })}\n`);
    });
  }

  /** QEMU's run state: running, paused, shutdown, postmigrate, inmigrate, … */
  async status(): Promise<string> {
    const answer = (await this.execute('query-status')) as { status: string };
    return answer.status;
  }

  /** Resolves at the first event that `wanted` accepts; undefined when the time is over, `signal` aborts or the connection ends. */
  async waitForEvent(
    wanted: (event: QmpEvent) => boolean,
    { timeoutMilliseconds, signal }: { timeoutMilliseconds: number; signal: AbortSignal },
  ): Promise<QmpEvent | undefined> {
    if (this.#closed || signal.aborted) return undefined;
    return await new Promise((resolve) => {
      const finish = (event: QmpEvent | undefined) => {
        clearTimeout(timer);
        this.off('event', onEvent);
        this.off('close', onEnd);
        signal.removeEventListener('abort', onEnd);
        resolve(event);
      };
      const onEvent = (event: QmpEvent) => {
        if (wanted(event)) finish(event);
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

  #receive(message: Message): void {
    if (message.event !== undefined) {
      this.emit('event', { event: message.event, data: message.data ?? {} });
      return;
    }
    if (message.id === undefined) return;
    const pending = this.#pending.get(message.id);
    if (pending === undefined) return;
    this.#pending.delete(message.id);
    clearTimeout(pending.timer);
    if (message.error === undefined) pending.resolve(message.return);
    else pending.reject(new QmpError(message.error.desc));
  }

  #end(): void {
    this.#closed = true;
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(new QmpError('the connection was closed'));
    }
    this.#pending.clear();
    this.emit('close');
  }
}

async function connectSocket(folder: string, name: string, signal: AbortSignal): Promise<Socket> {
  for (;;) {
    if (signal.aborted) throw new QmpError(`${name}: no connection`);
    try {
      return await withSocketPath(folder, name, connectTo);
    } catch (error) {
      const code = codeOf(error);
      if (code !== 'ENOENT' && code !== 'ECONNREFUSED' && code !== 'EAGAIN') throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, CONNECT_INTERVAL_MILLISECONDS));
  }
}
