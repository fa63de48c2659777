/**
 * Sessions between callers and machines, independent of the protocol. A session of `exec` or `attach` has the streams of a process. A
 * session of `port-forward` has connections to ports.
 */
import { Duplex, type Readable, type Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { LONGEST_TIMER_MILLISECONDS, rest } from '../../../base/time.ts';
import { COMMAND_PROTOCOL } from '../../../kube/channelprotocol.ts';
import { HttpError } from '../../../kube/serving/httperror.ts';
import { readItems } from '../../../kube/serving/websockets.ts';

/** Time limit for a client to read the remaining data and the result after the session's signal has aborted. */
const FINISH_MILLISECONDS = 10_000;

/** Answer to `exec` or `attach` in the form of `metav1.Status`, which kubectl turns into its exit code or its message. */
export interface StreamStatus {
  metadata: Record<string, never>;
  status: 'Success' | 'Failure';
  message?: string;
  reason?: string;
  details?: { causes: { reason: string; message: string }[] };
}

/** Streams that a caller asks for. */
export interface WantedStreams {
  stdin: boolean;
  /** Whether the agent needs the end of stdin. */
  stdinEnd: boolean;
  stdout: boolean;
  stderr: boolean;
  /** Whether the caller has a terminal and sends the terminal's size. */
  resize: boolean;
}

export interface StreamSession {
  /**
   * Signal that aborts when the connection has ended or was idle for too long, or when the agent ends. The signal's reason is an Error for
   * the caller.
   */
  signal: AbortSignal;
  /** Resolves when the connection has ended. Never rejects. */
  ended: Promise<void>;
}

/** One session of `exec` or `attach`, with its streams. A stream is undefined if the caller does not ask for the stream. */
export interface CommandSession extends StreamSession {
  stdin: Readable | undefined;
  stdout: Writable | undefined;
  stderr: Writable | undefined;
  /** Sends the result, and ends the connection after all data. Resolves when the client has closed the connection, or has not in time. */
  finish(status: StreamStatus): Promise<void>;
}

/** One connection of a caller to a port of the guest. */
export interface PortConnection {
  /** Port of the guest, from 1 to 65535. */
  port: number;
  data: Duplex;
  /**
   * Ends the connection. If there is a message, the caller gets it as the reason. When kubectl gets such a message, it usually ends all its
   * connections.
   */
  end(message?: string): void;
}

/** Limits of each session. */
export interface SessionLimits {
  /** Time without data after which a session ends, in milliseconds. */
  idleMilliseconds: number;
  /** Limit of open connections to ports in one session. */
  connections: number;
  /** Signal that aborts when the agent ends. The reason is an Error with a message for the caller. */
  stop: AbortSignal;
}

/** Error of a stream whose client closed the stream or the connection. This error is a normal end of a session. */
export class ClientGoneError extends Error {
  override readonly name = 'ClientGoneError';

  constructor() {
    super('The client has closed the connection');
  }
}

/**
 * Protocols for `exec` and `attach`, the preferred protocol first. The two protocols differ only in sessions over WebSockets. Older
 * protocols are not in the list, because they transfer no exit code.
 */
export const COMMAND_PROTOCOLS: readonly string[] = [COMMAND_PROTOCOL, 'v4.channel.k8s.io'];

/**
 * Returns the first of our protocols that the client offers in a header.
 *
 * @throws HttpError 400 when the client offers none of our protocols.
 */
export function chooseProtocol(header: string | string[] | undefined, ours: readonly string[]): string {
  const offered = new Set(readItems(header));
  const chosen = ours.find((one) => offered.has(one));
  if (chosen === undefined) {
    throw new HttpError(400, `The client offers none of the protocols ${ours.join(', ')}`);
  }
  return chosen;
}

/** Parses the number of a port. Returns undefined for other texts. */
export function parsePortNumber(text: string): number | undefined {
  const number = /^[1-9]\d{0,4}$/.test(text) ? Number(text) : 0;
  return number >= 1 && number <= 65_535 ? number : undefined;
}

export const SUCCESS: StreamStatus = { metadata: {}, status: 'Success' };

export function failure(message: string): StreamStatus {
  return { metadata: {}, status: 'Failure', reason: 'InternalError', message };
}

/** Returns the result of a command. kubectl ends with the same exit code. */
export function exited(code: number): StreamStatus {
  if (code === 0) {
    return SUCCESS;
  }
  return {
    metadata: {},
    status: 'Failure',
    reason: 'NonZeroExitCode',
    message: `command terminated with non-zero exit code: ${code}`,
    details: { causes: [{ reason: 'ExitCode', message: String(code) }] },
  };
}

/** Ends the streams to a client, and resolves when all data is sent or cannot be sent. */
export async function endStreams(streams: readonly (Duplex | undefined)[]): Promise<void> {
  const sent = streams
    .filter((one) => one !== undefined)
    .map(async (one) => await finished(one.end(), { readable: false }));
  await Promise.allSettled(sent);
}

/**
 * Waits until the end of a session, or one step of it, is complete. A slow client has as much time as it needs, because kubectl reports
 * success for an output that is cut off. After the signal of the session has aborted, for example because the session was idle, the time is
 * limited.
 */
export async function untilEnd(end: Promise<void>, signal: AbortSignal): Promise<void> {
  const enough = new AbortController();
  const late = async (): Promise<void> => {
    await rest(LONGEST_TIMER_MILLISECONDS, AbortSignal.any([signal, enough.signal]));
    await rest(FINISH_MILLISECONDS, enough.signal);
  };
  await Promise.race([end, late()]);
  enough.abort();
}

/** Ends a session when the session is idle for too long, or when the agent ends. Each call of {@link used} restarts the time limit. */
export class SessionEnd {
  readonly #timer: NodeJS.Timeout;
  readonly #stop: AbortSignal;
  readonly #onStop: () => void;

  constructor({ idleMilliseconds, stop }: SessionLimits, end: (reason: unknown) => void) {
    const minutes = Math.round(idleMilliseconds / 60_000);
    this.#timer = setTimeout(
      () => end(new Error(`The stream was idle for ${minutes} minutes`)),
      idleMilliseconds,
    );
    this.#timer.unref();
    this.#stop = stop;
    this.#onStop = () => end(stop.reason);
    stop.addEventListener('abort', this.#onStop);
  }

  used(): void {
    this.#timer.refresh();
  }

  /** Stops the timer and removes the listener. Call this function when the session has ended. */
  release(): void {
    clearTimeout(this.#timer);
    this.#stop.removeEventListener('abort', this.#onStop);
  }
}

/**
 * Limit of the bytes that wait in a stream, for each direction. While a stream is full, the agent does not read its connection. SPDY/3.1 as
 * Kubernetes uses it, and WebSockets, have no flow control for single streams.
 */
const BUFFERED_BYTES = 64 * 1024;
/**
 * Limit of the pieces that wait in a stream. Each piece needs some hundred bytes of memory in addition to its content, and a client can
 * send pieces of one byte.
 */
const BUFFERED_PIECES = 1024;
/** A piece is copied if the memory that it keeps is larger than the piece by more than this factor. */
const KEPT_FACTOR = 4;

/** One stream of a connection with several streams. */
export abstract class ReceivingStream extends Duplex {
  /** Number of pieces that were received since the stream was last empty. */
  #pieces = 0;

  constructor() {
    super({ highWaterMark: BUFFERED_BYTES });
    // An error of the connection reaches every stream. The pipeline that uses a stream reports the error. Without this listener, the error
    // of a stream without a pipeline would end the agent.
    this.on('error', () => undefined);
  }

  /** Called when the stream can take more bytes, perhaps also if it was not full. */
  protected abstract hasRoom(): void;

  /** Takes a piece that the client has sent. Returns false if the stream is full then; in this case {@link hasRoom} is called later. */
  protected receive(piece: Buffer): boolean {
    this.#pieces += 1;
    return this.push(withOwnMemory(piece)) && !this.#hasManyPieces;
  }

  override read(size?: number): unknown {
    const bytes: unknown = super.read(size);
    if (this.readableLength === 0) {
      this.#pieces = 0;
      this.hasRoom();
    }
    return bytes;
  }

  override _read(): void {
    // Node.js also calls this function when nobody has read, if the waiting pieces have few bytes.
    if (!this.#hasManyPieces) {
      this.hasRoom();
    }
  }

  get #hasManyPieces(): boolean {
    return this.readableLength > 0 && this.#pieces >= BUFFERED_PIECES;
  }
}

/** Returns the bytes without a larger memory around them. A piece of a received chunk otherwise keeps the whole chunk. */
function withOwnMemory(piece: Buffer): Buffer {
  if (piece.length * KEPT_FACTOR >= piece.buffer.byteLength) {
    return piece;
  }
  // With `allocUnsafeSlow`, the copy gets memory of its own. Other functions would take a part of the memory that small buffers share.
  const copy = Buffer.allocUnsafeSlow(piece.length);
  piece.copy(copy);
  return copy;
}
