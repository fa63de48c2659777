/** Sessions over WebSockets. The first byte of each message is the number of its channel. */
import type { WebSocket } from 'ws';
import {
  COMMAND_CHANNEL,
  COMMAND_PROTOCOL,
  END_CHANNEL,
  PORT_PROTOCOL,
} from '../../../kube/channelprotocol.ts';
import { HttpError } from '../../../kube/serving/httperror.ts';
import type { Upgrade } from '../../../kube/serving/upgrades.ts';
import { acceptWebSocket } from '../../../kube/serving/websockets.ts';
import {
  chooseProtocol,
  ClientGoneError,
  COMMAND_PROTOCOLS,
  type CommandSession,
  endStreams,
  parsePortNumber,
  type PortConnection,
  ReceivingStream,
  type StreamSession,
  SessionEnd,
  type SessionLimits,
  type StreamStatus,
  untilEnd,
  type WantedStreams,
} from './session.ts';

/**
 * Limit of one message in bytes. kubectl sends at most 32 KiB in one message, but the Python client sends a whole text or some hundred KiB of a
 * forwarded connection. A connection holds one message beside what waits in its channels.
 */
const MESSAGE_BYTES = 1024 * 1024;
/** Longest message that the agent sends, in bytes, without the number of the channel. */
const SENT_BYTES = 64 * 1024;
/**
 * Time between two pings that the server sends, as in spdy/connection.ts. If the client has closed the connection, a ping cannot be sent,
 * and the server notices the loss.
 */
const PING_MILLISECONDS = 30_000;

class Channel extends ReceivingStream {
  readonly #channels: Channels;
  readonly #number: number;

  constructor(channels: Channels, number: number) {
    super();
    this.#channels = channels;
    this.#number = number;
  }

  /** Takes bytes that the client has sent. If the channel is then full, the connection is not read until somebody reads the channel. */
  deliver(bytes: Buffer): void {
    if (!this.receive(bytes)) {
      this.#channels.pause(this.#number);
    }
  }

  protected override hasRoom(): void {
    this.#channels.resume(this.#number);
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: (error?: Error | null) => void): void {
    this.#channels.send(this.#number, chunk, done);
  }

  override _final(done: () => void): void {
    // The protocol cannot tell the client that the guest has ended its direction of the connection. So the agent also ends the client's
    // direction.
    this.push(null);
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#channels.resume(this.#number);
    done(error);
  }
}

/** The channels of one connection. */
class Channels {
  readonly signal: AbortSignal;
  readonly ended: Promise<void>;
  readonly #socket: WebSocket;
  readonly #open = new Map<number, Channel>();
  readonly #full = new Set<number>();
  readonly #end: SessionEnd;

  constructor(socket: WebSocket, limits: SessionLimits, hasEnds: boolean) {
    this.#socket = socket;
    const lost = new AbortController();
    this.signal = lost.signal;
    this.#end = new SessionEnd(limits, (reason) => lost.abort(reason));
    const timer = setInterval(() => socket.ping(), PING_MILLISECONDS).unref();
    const { promise, resolve } = Promise.withResolvers<void>();
    this.ended = promise;
    socket.on('error', (error) => lost.abort(error));
    socket.on('close', () => {
      clearInterval(timer);
      this.#end.release();
      const error = new ClientGoneError();
      lost.abort(error);
      for (const channel of this.#open.values()) {
        channel.destroy(error);
      }
      resolve();
    });
    socket.on('message', (message) => this.#take(message as Buffer, hasEnds));
  }

  open(number: number): Channel {
    const channel = new Channel(this, number);
    this.#open.set(number, channel);
    return channel;
  }

  send(number: number, bytes: Buffer, done: (error?: Error | null) => void): void {
    this.#end.used();
    for (let at = 0; ; at += SENT_BYTES) {
      const message = Buffer.concat([Buffer.from([number]), bytes.subarray(at, at + SENT_BYTES)]);
      if (at + SENT_BYTES >= bytes.length) {
        this.#socket.send(message, done);
        return;
      }
      // Errors of this message are ignored, because the callback of the last message reports the same errors.
      this.#socket.send(message, () => undefined);
    }
  }

  /** Stops reading the connection until the channel can take more bytes. */
  pause(number: number): void {
    this.#full.add(number);
    this.#socket.pause();
  }

  /** Records that a channel can take more bytes. */
  resume(number: number): void {
    if (this.#full.delete(number) && this.#full.size === 0) {
      this.#socket.resume();
    }
  }

  close(): void {
    this.#socket.close();
  }

  #take(message: Buffer, hasEnds: boolean): void {
    const [number, named] = message;
    if (number === END_CHANNEL && hasEnds) {
      this.#endChannel(named);
      return;
    }
    const channel = this.#open.get(number ?? -1);
    if (number === undefined || channel === undefined || channel.destroyed || message.length === 1) {
      return;
    }
    this.#end.used();
    channel.deliver(message.subarray(1));
  }

  /** Ends the client's side of a channel. Later messages to the channel are dropped. */
  #endChannel(number: number | undefined): void {
    const channel = this.#open.get(number ?? -1);
    this.#open.delete(number ?? -1);
    channel?.push(null);
  }
}

/** Accepts the connection. @throws HttpError 400 when the client offers none of the protocols. */
function accept(upgrade: Upgrade, ours: readonly string[], limits: SessionLimits): Channels {
  const protocol = chooseProtocol(upgrade.request.headers['sec-websocket-protocol'], ours);
  const socket = acceptWebSocket(upgrade, { protocol, messageBytes: MESSAGE_BYTES });
  return new Channels(socket, limits, protocol === COMMAND_PROTOCOL);
}

/**
 * Accepts a session for `exec` or `attach`. @throws HttpError 400 when the client offers no known protocol, or cannot end an input whose
 * end the agent needs. Otherwise the agent would wait for this end until the session is idle for too long.
 */
export function acceptCommand(
  upgrade: Upgrade,
  wanted: WantedStreams,
  limits: SessionLimits,
): CommandSession {
  const offered = upgrade.request.headers['sec-websocket-protocol'];
  if (wanted.stdin && wanted.stdinEnd && chooseProtocol(offered, COMMAND_PROTOCOLS) !== COMMAND_PROTOCOL) {
    throw new HttpError(
      400,
      `The agent needs the end of the input, so the client must offer the protocol ${COMMAND_PROTOCOL}, or send no input`,
    );
  }
  const channels = accept(upgrade, COMMAND_PROTOCOLS, limits);
  const open = (name: 'stdin' | 'stdout' | 'stderr'): Channel | undefined =>
    wanted[name] ? channels.open(COMMAND_CHANNEL[name]) : undefined;
  const [stdin, stdout, stderr] = [open('stdin'), open('stdout'), open('stderr')];
  const { signal, ended } = channels;
  return {
    stdin,
    stdout,
    stderr,
    signal,
    ended,
    finish: async (status: StreamStatus) => {
      // If nobody read the input, a full channel would keep the agent from noticing that the client closes the connection.
      stdin?.resume();
      await untilEnd(endStreams([stdout, stderr]), signal);
      channels.send(COMMAND_CHANNEL.status, Buffer.from(JSON.stringify(status)), () => undefined);
      channels.close();
      await untilEnd(ended, signal);
    },
  };
}

/**
 * Accepts a session for connections to ports, one connection for each `port` of the query. The protocol cannot end only one direction of a
 * connection. So when the guest ends its direction, the whole connection ends. The session ends when all its connections have ended.
 *
 * @throws HttpError 400 when a port is wrong, the number of ports is wrong, or the client does not offer the agent's protocol.
 */
export function acceptPorts(
  upgrade: Upgrade,
  limits: SessionLimits,
  onConnection: (connection: PortConnection) => void,
): StreamSession {
  const ports = upgrade.url.searchParams
    .getAll('port')
    .flatMap((text) => text.split(',').map(parsePortNumber));
  if (ports.length === 0 || ports.length > limits.connections) {
    throw new HttpError(
      400,
      `The query must have from 1 to ${limits.connections} parameters with the name port`,
    );
  }
  if (ports.includes(undefined)) {
    throw new HttpError(400, 'The parameter port is not a number from 1 to 65535');
  }
  const channels = accept(upgrade, [PORT_PROTOCOL], limits);
  channels.signal.addEventListener('abort', () => channels.close());
  let left = ports.length;
  for (const [index, port = 0] of ports.entries()) {
    const [data, error] = [channels.open(2 * index), channels.open(2 * index + 1)];
    error.resume();
    // The first message of each channel is the number of its port, in little-endian order.
    const begin = Buffer.from([port % 256, Math.floor(port / 256)]);
    data.write(begin);
    error.write(begin);
    onConnection({
      port,
      data,
      end: (message = '') => {
        error.end(message);
        data.destroy();
        left -= 1;
        if (left === 0) {
          channels.close();
        }
      },
    });
  }
  return channels;
}
