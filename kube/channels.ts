/**
 * WebSockets to Pods through the API server, for `exec`, `attach` and `portforward`. One WebSocket carries several channels, and the first
 * byte of each message is the number of its channel. The code uses the library `ws`, because the WebSockets of `@kubernetes/client-node` do
 * not wait for slow readers.
 */
import { Duplex } from 'node:stream';
import { WebSocket } from 'ws';
import { COMMAND_PROTOCOL, END_CHANNEL, MESSAGE_PARTS } from './channelprotocol.ts';
import type { Connection } from './credentials.ts';
import { DeadlineError } from './errors.ts';
import { tlsOptionsOf } from './pool.ts';
import { readRefusal, type UpgradeRequest } from './upgrade.ts';

/**
 * Time limit in milliseconds for the connection attempt and the answer. The answer can be slow, because the API server waits for the host.
 */
const ANSWER_MILLISECONDS = 30_000;
/** Limit of one received message in bytes. Agents send up to 64 KiB. */
const MESSAGE_BYTES = 1024 * 1024;
/** Length in bytes of the longest message that is sent, without the number of the channel. client-go has the same limit. */
const SENT_BYTES = 32 * 1024;
/**
 * Size in bytes of the buffer for each direction of a channel. While the buffer for received bytes of any channel is full, this process
 * does not read from the connection.
 */
const BUFFERED_BYTES = 64 * 1024;
/**
 * Interval in milliseconds between two pings. They keep the connection open: proxies close a connection after about a minute without data.
 */
const PING_MILLISECONDS = 20_000;
/** Number of pings without an answer after which the connection counts as lost. */
const LOST_PINGS = 3;

/** How a connection has ended. */
export interface ChannelsEnd {
  /** Close code of the WebSocket. 1006 means that the peer sent no close message. */
  readonly code: number;
  /** Last error of the connection. Absent if there was no error. */
  readonly error?: Error;
}

export interface ChannelsRequest extends UpgradeRequest {
  /** Numbers of the channels that the caller uses. Messages of other channels are dropped. */
  readonly numbers: readonly number[];
}

export interface WebSocketRequest extends UpgradeRequest {
  /** Limit of one received message in bytes. */
  readonly messageBytes: number;
}

/** Opens a WebSocket with channels to the path. @throws the same errors as {@link openWebSocket}. */
export async function openChannels(
  connection: Connection,
  { numbers, ...request }: ChannelsRequest,
): Promise<Channels> {
  const hasEnds = request.protocol === COMMAND_PROTOCOL;
  return await openWebSocket(
    connection,
    { ...request, messageBytes: MESSAGE_BYTES },
    (socket) => new Channels(socket, numbers, hasEnds),
  );
}

/**
 * Opens a WebSocket to the path, and returns what `take` makes of it. `take` is called before the first message can arrive. The WebSocket
 * is closed when the signal aborts.
 *
 * @throws ApiError when the server refuses, the signal's reason when the signal aborts, DeadlineError when no answer comes in time, or the
 * network's error when the connection fails.
 */
export async function openWebSocket<T>(
  connection: Connection,
  { path, protocol, headers, messageBytes, signal }: WebSocketRequest,
  take: (socket: WebSocket) => T,
): Promise<T> {
  signal.throwIfAborted();
  const url = new URL(path, connection.server).href.replace(/^http/, 'ws');
  const socket = new WebSocket(url, [protocol], {
    headers: { ...headers },
    maxPayload: messageBytes,
    maxFragments: MESSAGE_PARTS,
    perMessageDeflate: false,
    ...tlsOptionsOf(connection),
  });
  const { promise, resolve, reject } = Promise.withResolvers<T>();
  const end = (reason: unknown): void => {
    reject(reason);
    socket.terminate();
  };
  const late = () => end(new DeadlineError(`GET ${path.split('?')[0]}: no answer in time`));
  const timer = setTimeout(late, ANSWER_MILLISECONDS);
  const onAbort = (): void => end(signal.reason);
  signal.addEventListener('abort', onAbort, { once: true });
  socket.once('close', () => signal.removeEventListener('abort', onAbort));
  // This listener is never removed, because an error without a listener would end the process.
  socket.on('error', reject);
  socket.once('open', () => resolve(take(socket)));
  socket.once('unexpected-response', (_request, response) => {
    readRefusal(response, response.statusCode).then(end, end);
  });
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
  }
}

/** The channels of one connection. */
export class Channels {
  /** Resolves when the connection and all its channels have ended. A reader can still read the data that has arrived before. */
  readonly ended: Promise<ChannelsEnd>;
  readonly #socket: WebSocket;
  readonly #hasEnds: boolean;
  readonly #channels = new Map<number, Channel>();
  readonly #full = new Set<number>();
  #pings = 0;

  constructor(socket: WebSocket, numbers: readonly number[], hasEnds: boolean) {
    this.#socket = socket;
    this.#hasEnds = hasEnds;
    for (const number of numbers) {
      this.#channels.set(number, this.#channel(number));
    }
    const { promise, resolve } = Promise.withResolvers<ChannelsEnd>();
    this.ended = promise;
    let lastError: Error | undefined;
    const timer = setInterval(() => this.#ping(), PING_MILLISECONDS);
    socket.on('error', (error) => {
      lastError = error;
    });
    socket.on('pong', () => {
      this.#pings = 0;
    });
    socket.on('message', (message: Buffer) => this.#take(message));
    socket.on('close', (code) => {
      clearInterval(timer);
      for (const channel of this.#channels.values()) {
        channel.endInput();
      }
      resolve({ code, ...(lastError === undefined ? {} : { error: lastError }) });
    });
  }

  /** Returns the channel with this number. @throws Error when the connection was created without this channel. */
  channel(number: number): Duplex {
    const channel = this.#channels.get(number);
    if (channel === undefined) {
      throw new Error(`there is no channel ${number}`);
    }
    return channel;
  }

  /** Ends the connection. Data that the peer has not received is lost. */
  close(): void {
    this.#socket.terminate();
  }

  #ping(): void {
    // While a reader is slow, this process reads nothing from the connection, not even answers to pings. Pings during this time would seem
    // to have no answer, and the connection would count as lost. Therefore none are sent.
    if (this.#full.size > 0) {
      return;
    }
    if (this.#pings >= LOST_PINGS) {
      this.#socket.terminate();
      return;
    }
    this.#pings += 1;
    this.#socket.ping();
  }

  #send(number: number, bytes: Buffer, done: () => void): void {
    for (let at = 0; at < bytes.length; at += SENT_BYTES) {
      const message = Buffer.concat([Buffer.from([number]), bytes.subarray(at, at + SENT_BYTES)]);
      // Errors of `send` are ignored here, because `ended` reports them.
      this.#socket.send(message, at + SENT_BYTES >= bytes.length ? done : () => undefined);
    }
  }

  #end(number: number): void {
    if (this.#hasEnds) {
      this.#socket.send(Buffer.from([END_CHANNEL, number]), () => undefined);
    }
  }

  #take(message: Buffer): void {
    this.#pings = 0;
    const [number = -1, named = -1] = message;
    if (number === END_CHANNEL && this.#hasEnds) {
      this.#channels.get(named)?.endInput();
      return;
    }
    const channel = this.#channels.get(number);
    if (channel === undefined || channel.hasEnded || message.length === 1) {
      return;
    }
    if (!channel.push(message.subarray(1))) {
      this.#full.add(number);
      this.#socket.pause();
    }
  }

  #channel(number: number): Channel {
    return new Channel({
      // The reader has taken data, so the channel is no longer full.
      resume: () => {
        if (this.#full.delete(number) && this.#full.size === 0) {
          this.#socket.resume();
        }
      },
      send: (bytes, done) => this.#send(number, bytes, done),
      end: () => this.#end(number),
    });
  }
}

interface ChannelEvents {
  readonly resume: () => void;
  readonly send: (bytes: Buffer, done: () => void) => void;
  readonly end: () => void;
}

class Channel extends Duplex {
  readonly #events: ChannelEvents;
  #isEnded = false;

  constructor(events: ChannelEvents) {
    super({ highWaterMark: BUFFERED_BYTES });
    this.#events = events;
  }

  /** Whether the channel receives no more data. */
  get hasEnded(): boolean {
    return this.#isEnded || this.destroyed;
  }

  /** Marks the end of the received data. A reader can still read the data that came before. */
  endInput(): void {
    if (!this.hasEnded) {
      this.#isEnded = true;
      this.push(null);
    }
  }

  override _read(): void {
    this.#events.resume();
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: () => void): void {
    this.#events.send(chunk, () => done());
  }

  override _final(done: () => void): void {
    this.#events.end();
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#events.resume();
    done(error);
  }
}
