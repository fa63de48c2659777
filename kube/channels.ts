/**
 * WebSockets to Pods through the API server, for `exec`, `attach` and `portforward`. The first byte of each message is the number of its
 * channel. The library `ws` does the protocol. `@kubernetes/client-node` does not wait for slow readers, so it is not used here.
 */
import { Duplex } from 'node:stream';
import { WebSocket } from 'ws';
import type { Connection } from './credentials.ts';
import { DeadlineError } from './errors.ts';
import { tlsOptionsOf } from './pool.ts';
import { refusalIn, type UpgradeRequest } from './upgrade.ts';

/** WebSocket protocol for commands. Earlier versions of it cannot signal the end of the input. */
export const COMMAND_PROTOCOL = 'v5.channel.k8s.io';
/** WebSocket protocol for connections to ports. */
export const PORT_PROTOCOL = 'v4.channel.k8s.io';

/**
 * Time limit in milliseconds for the connection attempt and the answer. It includes the time in which the API server waits for the host.
 */
const ANSWER_MILLISECONDS = 30_000;
/** Limit of one received message in bytes. Agents send up to 64 KiB. */
const MESSAGE_BYTES = 1024 * 1024;
/** Length in bytes of the longest message that is sent, without the number of the channel. client-go has the same limit. */
const SENT_BYTES = 32 * 1024;
/**
 * Largest number of bytes that wait in one channel and direction. While a channel is full, this process does not read from the connection.
 */
const BUFFERED_BYTES = 64 * 1024;
/** Time in milliseconds between two pings. Proxies close a connection if no data moves for about a minute. */
const PING_MILLISECONDS = 20_000;
/** When this number of pings get no answer, the connection counts as lost. */
const LOST_PINGS = 3;
/** Channel of the command protocol with messages about the end of other channels. */
const END_CHANNEL = 255;

/** How a connection has ended. */
export interface ChannelsEnd {
  /** Close code of the WebSocket. 1006 means that the peer sent no close message. */
  readonly code: number;
  /** Error of the connection. */
  readonly error?: Error;
}

export interface ChannelsRequest extends UpgradeRequest {
  /** Numbers of the channels. Messages of other channels are dropped. */
  readonly numbers: readonly number[];
}

/** Connects to the path. @throws ApiError when the answer is a refusal; the signal's reason; the network's error. */
export async function openChannels(
  connection: Connection,
  { path, protocol, headers, numbers, signal }: ChannelsRequest,
): Promise<Channels> {
  signal.throwIfAborted();
  const url = new URL(path, connection.server).href.replace(/^http/, 'ws');
  const socket = new WebSocket(url, [protocol], {
    headers: { ...headers },
    maxPayload: MESSAGE_BYTES,
    perMessageDeflate: false,
    ...tlsOptionsOf(connection),
  });
  const { promise, resolve, reject } = Promise.withResolvers<Channels>();
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
  socket.once('open', () => resolve(new Channels(socket, numbers, protocol === COMMAND_PROTOCOL)));
  socket.once('unexpected-response', (_request, response) => {
    refusalIn(response, response.statusCode).then(end, end);
  });
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
  }
}

/** The channels of one connection. */
export class Channels {
  /** Resolves when the connection has ended. All channels then end, but the data that they have received can be read. */
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
    // While a reader is slow, this process also reads no answers to pings, so they do not count as missing.
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
      // The end of the connection reports errors.
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
      // The channel can take more data now.
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

  /** Whether nothing more can be received. */
  get hasEnded(): boolean {
    return this.#isEnded || this.destroyed;
  }

  /** Ends the received data. Data that came before can be read. */
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
