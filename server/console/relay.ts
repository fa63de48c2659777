/** Passes the messages of a WebSocket of a browser on to a WebSocket of a host, and back, unchanged. */
import { addAbortListener } from 'node:events';
import { WebSocket } from 'ws';
import { ByteCollector } from '../../base/lines.ts';

/** Longest message in bytes. Agents send 64 KiB and the number of the channel, the page sends less. */
export const MESSAGE_BYTES = 65 * 1024;
/**
 * Number of bytes that wait in one direction. While there are more, the sender is not read. What it had sent before, one message and one
 * piece of the connection, still comes. So at most 256 KiB wait.
 */
const WAITING_BYTES = 64 * 1024;
/**
 * Largest number of messages, and of bytes, that are written at once. A message that is written needs some hundred bytes beside its content,
 * and a piece of a connection can contain ten thousand messages.
 */
const BATCH = { messages: 64, bytes: 64 * 1024 } as const;
/** Time in milliseconds without a message after which a stream ends. It is that of the agent: a forgotten stream keeps its place no longer. */
const IDLE_MILLISECONDS = 30 * 60_000;
/** Interval in milliseconds between two pings. They keep the connection open: proxies close a connection after a minute without data. */
const PING_MILLISECONDS = 20_000;
/** Number of pings without an answer after which the other side counts as lost, for example because its laptop sleeps. */
const LOST_PINGS = 3;
/** Time in milliseconds that a peer has to confirm the end. */
const CLOSE_MILLISECONDS = 5_000;
/** Code of an end without a code. */
const NO_CODE = 1005;
/** Longest reason of an end, in bytes (RFC 6455, section 5.5). */
const REASON_BYTES = 123;

/** Codes with which a WebSocket ends (RFC 6455, section 7.4.1). */
export const CLOSE = { normal: 1000, leaving: 1001, refused: 1008, failed: 1011 } as const;

/** How a stream ends. */
export interface StreamEnd {
  readonly code: number;
  readonly reason: string;
}

const FORGOTTEN: StreamEnd = {
  code: CLOSE.normal,
  reason: `The stream was idle for ${IDLE_MILLISECONDS / 60_000} minutes`,
};
const NOT_BINARY: StreamEnd = {
  code: CLOSE.failed,
  reason: 'A message is a text, and the protocols of streams have none',
};
const LOST: StreamEnd = { code: CLOSE.failed, reason: 'The connection to the host is lost' };

/** End of a stream when the server stops. */
export const LEAVING: StreamEnd = { code: CLOSE.leaving, reason: 'The HTTP API is stopping. Connect again' };

interface RelayEnds {
  /** Aborts when the browser is gone or the server stops. */
  readonly signal: AbortSignal;
  /** Resolves when the stream must end for another reason. */
  readonly end: Promise<StreamEnd>;
}

/**
 * Passes messages on between the browser and the host, which are paused. Ends both when one of them ends, when nobody has sent a message for
 * too long, or as `ends` tells. Resolves then.
 */
export async function relay(browser: WebSocket, host: WebSocket, { signal, end }: RelayEnds): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<StreamEnd>();
  const idle = setTimeout(() => resolve(FORGOTTEN), IDLE_MILLISECONDS);
  const events = { onUsed: () => idle.refresh(), onText: () => resolve(NOT_BINARY) };
  pump(browser, host, events);
  pump(host, browser, events);
  const pings = [browser, host].map((socket) => keepAlive(socket, () => resolve(LOST)));
  browser.once('close', () => resolve({ code: CLOSE.normal, reason: '' }));
  host.once('close', (code: number, reason: Buffer) => resolve(endOf(code, reason.toString())));
  end.then(resolve, () => resolve(LOST));
  // The abort also cuts the connection to the host. This listener is earlier than the event of that.
  using _listener = addAbortListener(signal, () => resolve(LEAVING));
  browser.resume();
  host.resume();
  const found = await promise;
  clearTimeout(idle);
  pings.forEach((timer) => clearInterval(timer));
  closeSocket(browser, found);
  closeSocket(host, { code: CLOSE.normal, reason: '' });
}

/** Returns the end for the browser when the host has ended. Codes below 3000 are for the two ends of one connection. */
function endOf(code: number, reason: string): StreamEnd {
  const isOrderly = code === CLOSE.normal || code === NO_CODE || code >= 3000;
  return isOrderly ? { code: CLOSE.normal, reason } : { ...LOST, reason: reason || LOST.reason };
}

/** Sends the end, and closes the connection at once or after {@link CLOSE_MILLISECONDS}. */
export function closeSocket(socket: WebSocket, { code, reason }: StreamEnd): void {
  if (socket.readyState === WebSocket.CLOSED) {
    return;
  }
  // A socket that is not read would not notice the answer of its peer.
  socket.resume();
  socket.close(code, cutBytes(reason, REASON_BYTES));
  const timer = setTimeout(() => socket.terminate(), CLOSE_MILLISECONDS);
  socket.once('close', () => clearTimeout(timer));
}

/** Returns the beginning of the text that has at most this number of bytes as UTF-8. */
function cutBytes(text: string, limit: number): string {
  const bytes = Buffer.from(text);
  return bytes.length <= limit
    ? text
    : bytes
        .subarray(0, limit)
        .toString()
        .replace(/\uFFFD$/, '');
}

interface PumpEvents {
  /** Function that is called for each message that is passed on. */
  readonly onUsed: () => void;
  /** Function that is called for a message that is a text. It is not passed on. */
  readonly onText: () => void;
}

/**
 * Passes on each message. While one is written, further ones wait. While too much waits for `to`, `from` is not read. That alone bounds
 * nothing: a piece of the connection that has been read is passed on as a whole.
 */
function pump(from: WebSocket, to: WebSocket, { onUsed, onText }: PumpEvents): void {
  const waiting = new WaitingMessages();
  let unwritten = 0;
  const send = (message: Buffer) => {
    unwritten += 1;
    // An error means that `to` ends. Its end ends the stream.
    to.send(message, () => {
      unwritten -= 1;
      if (unwritten === 0) {
        waiting.shift().forEach(send);
        if (waiting.bytes <= WAITING_BYTES / 2) {
          from.resume();
        }
      }
    });
  };
  from.on('message', (message: Buffer, isBinary: boolean) => {
    if (!isBinary) {
      onText();
      return;
    }
    onUsed();
    if (unwritten === 0) {
      send(message);
    } else {
      waiting.push(message);
    }
    if (waiting.bytes > WAITING_BYTES) {
      from.pause();
    }
  });
}

/** Number of bytes that tell the length of a message that waits. */
const LENGTH_BYTES = 4;

/**
 * Messages that wait. They are copied one after the other into one piece of memory: a message of one byte would otherwise need hundreds of
 * bytes for its objects, and keep the whole piece of the connection in memory from which it came.
 */
class WaitingMessages {
  readonly #added = new ByteCollector();
  /** Messages that are shifted. It is never written to, because a write can still need it. */
  #first: Buffer = Buffer.alloc(0);

  /** Number of bytes, with those that tell the lengths. */
  get bytes(): number {
    return this.#first.length + this.#added.length;
  }

  push(message: Buffer): void {
    const length = Buffer.alloc(LENGTH_BYTES);
    length.writeUInt32LE(message.length);
    this.#added.add(length);
    this.#added.add(message);
  }

  /** Returns the oldest messages, at most a {@link BATCH}. They no longer wait. */
  shift(): Buffer[] {
    const shifted: Buffer[] = [];
    for (let taken = 0; shifted.length < BATCH.messages && taken < BATCH.bytes && this.bytes > 0; ) {
      if (this.#first.length === 0) {
        this.#first = this.#added.take();
      }
      const end = LENGTH_BYTES + this.#first.readUInt32LE();
      shifted.push(this.#first.subarray(LENGTH_BYTES, end));
      this.#first = this.#first.subarray(end);
      taken += end;
    }
    return shifted;
  }
}

/** Sends pings, and calls `onLost` if nothing has come for {@link LOST_PINGS} of them. */
export function keepAlive(socket: WebSocket, onLost: () => void): NodeJS.Timeout {
  let unanswered = 0;
  const heard = () => {
    unanswered = 0;
  };
  socket.on('message', heard).on('pong', heard);
  return setInterval(() => {
    // While the socket is not read, its answers would not be seen.
    if (socket.isPaused) {
      return;
    }
    if (unanswered >= LOST_PINGS) {
      onLost();
      return;
    }
    unanswered += 1;
    socket.ping();
  }, PING_MILLISECONDS);
}
