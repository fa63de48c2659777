/**
 * The server side of a SPDY/3.1 connection, with only the parts that Kubernetes uses. The client opens all streams, and there is no flow
 * control.
 */
import type { Duplex } from 'node:stream';
import { ByteReader } from '../../../../base/bytereader.ts';
import { codeOf } from '../../../../base/errors.ts';
import { ClientGoneError, ReceivingStream } from '../session.ts';
import {
  dataHeader,
  FIN,
  type Frame,
  FRAME_HEADER_BYTES,
  GO_AWAY,
  goAway,
  HeaderReader,
  type Headers,
  idAt,
  parseFrame,
  ping,
  ProtocolError,
  RESET,
  reset,
  synReply,
  TYPE,
} from './frames.ts';

/** Limit of a control frame in bytes. Frames of real clients have about 100 bytes. */
const CONTROL_BYTES = 16 * 1024;
/**
 * Largest total size, in bytes, of the control frames that wait to be sent while the client does not read. Thousands of answers to pings
 * fit into this limit.
 */
const WAITING_CONTROL_BYTES = 64 * 1024;
/** Longest payload of a sent data frame in bytes. Longer data is sent in several frames, so that one stream does not delay the others. */
const DATA_BYTES = 64 * 1024;
/** Number of bytes before the headers in the frame that opens a stream: two ids, the priority and an unused byte. */
const SYN_STREAM_BYTES = 10;
/**
 * Time between two pings of the server. If the client has closed the connection, the server cannot send a ping. So the server notices the
 * loss even while a full stream prevents it from reading.
 */
const PING_MILLISECONDS = 30_000;

/** Time within which a client must close a connection that the server has ended. */
const CLOSE_MILLISECONDS = 5_000;

export interface SpdyOptions {
  /** Largest number of open streams. If the client opens more streams, they are refused, and the connection continues. */
  streams: number;
  /** Called for each new stream. The function may destroy the stream at once. */
  onStream: (stream: SpdyStream) => void;
  /** Called when data goes through the connection, in either direction. */
  onData: () => void;
}

export class SpdyConnection implements StreamOwner {
  readonly #socket: Duplex;
  readonly #options: SpdyOptions;
  readonly #streams = new Map<number, SpdyStream>();
  readonly #headers = new HeaderReader();
  #last = 0;
  #replied = false;
  #waitingControl = 0;
  #pings = 0;

  /** The caller must handle the errors of the socket. */
  constructor(socket: Duplex, options: SpdyOptions) {
    this.#socket = socket;
    this.#options = options;
  }

  /** Reads until the connection ends. At the end, all streams are destroyed. @throws ProtocolError when the client broke the protocol. */
  async run(): Promise<void> {
    const timer = setInterval(() => this.#ping(), PING_MILLISECONDS).unref();
    // While a stream is full, `run` waits. If the connection is lost, this listener destroys the streams, so that `run` continues and ends.
    this.#socket.once('close', () => this.#destroyStreams());
    // Bytes are read only while the reader waits for them. So a client cannot send more while a stream is full.
    const reader = new ByteReader(this.#socket.iterator({ destroyOnReturn: false }));
    try {
      while (await this.#frame(reader)) {
        // Each pass of this loop handles one frame.
      }
    } catch (error) {
      if (error instanceof ProtocolError) {
        this.#control(goAway(this.#last, GO_AWAY.protocolError));
        throw error;
      }
      // An error with a code means that the connection was lost. This is a normal end, so the function does not throw such an error.
      if (codeOf(error) === undefined) {
        throw error;
      }
    } finally {
      clearInterval(timer);
      this.#headers.close();
      this.#destroyStreams();
      this.#socket.end();
      // What a refused client still sends is dropped. Otherwise the server would not see that the client closes the connection. The caller
      // destroys the socket after a time limit, so an endless client does not matter.
      reader.drain().catch(() => undefined);
    }
  }

  /** Tells the client that the server accepts no more streams. Closes the server's side of the connection after all waiting data is sent. */
  end(): void {
    if (!this.#socket.writableEnded && !this.#socket.destroyed) {
      this.#control(goAway(this.#last, GO_AWAY.ok));
      this.#socket.end();
    }
  }

  /** Does the same as {@link end}. If the client does not close the connection in time, destroys the connection. */
  close(): void {
    this.end();
    if (!this.#socket.destroyed) {
      setTimeout(() => this.#socket.destroy(), CLOSE_MILLISECONDS).unref();
    }
  }

  sendData(stream: number, bytes: Buffer, end: boolean, done: (error?: Error | null) => void): void {
    this.#options.onData();
    if (!this.#socket.writable) {
      done(new ClientGoneError());
      return;
    }
    const frames: Buffer[] = [];
    for (let at = 0; at === 0 || at < bytes.length; at += DATA_BYTES) {
      const piece = bytes.subarray(at, at + DATA_BYTES);
      const isLast = at + DATA_BYTES >= bytes.length;
      frames.push(dataHeader(stream, isLast && end ? FIN : 0, piece.length), piece);
    }
    this.#socket.cork();
    for (const part of frames.slice(0, -1)) {
      this.#socket.write(part);
    }
    this.#socket.write(frames.at(-1), done);
    this.#socket.uncork();
  }

  closed(stream: number, finished: boolean): void {
    if (this.#streams.delete(stream) && !finished) {
      this.#control(reset(stream, RESET.cancel));
    }
  }

  /** Handles one frame. Returns false at the end of the connection. */
  async #frame(reader: ByteReader): Promise<boolean> {
    const header = await reader.read(FRAME_HEADER_BYTES);
    if (header.length < FRAME_HEADER_BYTES) {
      return false;
    }
    const frame = parseFrame(header);
    if (frame.kind === 'data') {
      return await this.#data(frame, reader);
    }
    if (frame.length > CONTROL_BYTES) {
      throw new ProtocolError(`a control frame has ${frame.length} bytes; the limit is ${CONTROL_BYTES}`);
    }
    const body = await reader.read(frame.length);
    if (body.length < frame.length) {
      return false;
    }
    await this.#handle(frame, body);
    return true;
  }

  async #data({ stream: id, flags, length }: Frame & { kind: 'data' }, reader: ByteReader): Promise<boolean> {
    if (id > this.#last || id % 2 === 0) {
      throw new ProtocolError(`there is data for stream ${id}, which was never opened`);
    }
    for (let left = length; left > 0; ) {
      const piece = await reader.some(left);
      if (piece.length === 0) {
        return false;
      }
      left -= piece.length;
      this.#options.onData();
      // If the server has reset a stream, data of this stream can arrive later. Such data is dropped.
      await this.#streams.get(id)?.deliver(piece);
    }
    if ((flags & FIN) !== 0) {
      this.#streams.get(id)?.deliverEnd();
    }
    return true;
  }

  async #handle(frame: Frame & { kind: 'control' }, body: Buffer): Promise<void> {
    switch (frame.type) {
      case TYPE.synStream:
        await this.#open(frame, needBytes(body, SYN_STREAM_BYTES));
        return;
      case TYPE.reset: {
        const id = idAt(needBytes(body, 8), 0);
        const stream = this.#streams.get(id);
        // The stream is deleted from the map before it is destroyed. Otherwise `closed` would answer the client's reset with another reset.
        this.#streams.delete(id);
        stream?.destroy(new ClientGoneError());
        return;
      }
      case TYPE.ping: {
        const id = needBytes(body, 4).readUInt32BE(0);
        // The server answers only pings with an odd id, because they come from the client. A ping with an even id is the client's answer to
        // a ping of the server.
        if (id % 2 === 1) {
          this.#control(ping(id));
        }
        return;
      }
      case TYPE.goAway:
        return;
      default:
        throw new ProtocolError(`a control frame has type ${frame.type}, which Kubernetes does not use`);
    }
  }

  async #open({ flags }: Frame & { kind: 'control' }, body: Buffer): Promise<void> {
    const id = idAt(body, 0);
    if (id % 2 === 0 || id <= this.#last) {
      throw new ProtocolError(`a stream has id ${id}; the next id must be odd and larger than ${this.#last}`);
    }
    if ((flags & ~FIN) !== 0) {
      throw new ProtocolError(`stream ${id} has the flags ${flags}; the only allowed flag is ${FIN}`);
    }
    // The headers are unpacked even if the stream is refused, because the compressed headers of later streams refer to them.
    const headers = await this.#headers.read(body.subarray(SYN_STREAM_BYTES));
    this.#last = id;
    if (this.#streams.size >= this.#options.streams) {
      this.#control(reset(id, RESET.refusedStream));
      return;
    }
    this.#control(synReply(id, !this.#replied));
    this.#replied = true;
    const stream = new SpdyStream(id, headers, this);
    this.#streams.set(id, stream);
    if ((flags & FIN) !== 0) {
      stream.deliverEnd();
    }
    this.#options.onStream(stream);
  }

  #ping(): void {
    this.#pings += 1;
    this.#control(ping(2 * this.#pings));
  }

  /**
   * Sends a control frame. If a client does not read, the function closes the connection, because nothing else limits the number of waiting
   * control frames.
   */
  #control(frame: Buffer): void {
    if (!this.#socket.writable) {
      return;
    }
    this.#waitingControl += frame.length;
    if (this.#waitingControl > WAITING_CONTROL_BYTES) {
      this.#socket.destroy();
      return;
    }
    this.#socket.write(frame, () => {
      this.#waitingControl -= frame.length;
    });
  }

  #destroyStreams(): void {
    const lost = new ClientGoneError();
    for (const stream of this.#streams.values()) {
      stream.destroy(lost);
    }
  }
}

/** Returns the body of a control frame. @throws ProtocolError when the body has fewer than `count` bytes. */
function needBytes(body: Buffer, count: number): Buffer {
  if (body.length < count) {
    throw new ProtocolError(`a control frame has ${body.length} bytes; its type needs at least ${count}`);
  }
  return body;
}

/** The parts of a connection that a stream uses. */
interface StreamOwner {
  /**
   * Sends bytes of a stream. If `end` is true, also tells the peer that nothing more follows. Calls `done` after the operating system has
   * taken the bytes, or with an error if the write fails.
   */
  sendData(stream: number, bytes: Buffer, end: boolean, done: (error?: Error | null) => void): void;
  /** Called once when a stream is closed. `finished` tells whether both the client and the server had ended the stream. */
  closed(stream: number, finished: boolean): void;
}

export class SpdyStream extends ReceivingStream {
  readonly id: number;
  readonly headers: Headers;
  readonly #owner: StreamOwner;
  #wake: (() => void) | undefined;
  #full = false;
  #ended = false;

  constructor(id: number, headers: Headers, owner: StreamOwner) {
    super();
    this.id = id;
    this.headers = headers;
    this.#owner = owner;
  }

  /** Takes bytes that the peer has sent. Resolves when the stream can take more bytes. Bytes of a closed stream are dropped. */
  async deliver(bytes: Buffer): Promise<void> {
    if (this.destroyed || this.#ended || this.receive(bytes)) {
      return;
    }
    this.#full = true;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wake = resolve;
    await promise;
  }

  /** Records that the peer sends nothing more. */
  deliverEnd(): void {
    if (!this.#ended && !this.destroyed) {
      this.#ended = true;
      this.push(null);
    }
  }

  protected override hasRoom(): void {
    if (this.#full) {
      this.#full = false;
      this.#wake?.();
    }
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: (error?: Error | null) => void): void {
    this.#owner.sendData(this.id, chunk, false, done);
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#owner.sendData(this.id, Buffer.alloc(0), true, done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#wake?.();
    this.#owner.closed(this.id, this.#ended && this.writableFinished);
    done(error);
  }
}
