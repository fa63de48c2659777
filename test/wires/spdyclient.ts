/** A client of SPDY/3.1, as far as the API server uses it with kubelets. It also sends frames that a good client would never send. */
import { EventEmitter, once } from 'node:events';
import type { Duplex } from 'node:stream';
import { constants, createDeflate } from 'node:zlib';
import { SPDY_DICTIONARY } from '../../agent/kubelet/streams/spdy/frames.ts';

/** Types of control frames. */
export const FRAME = { synStream: 1, synReply: 2, reset: 3, settings: 4, ping: 6, goAway: 7, headers: 8 };
export const FIN = 1;

/** What the server sent on one stream. */
export class ClientStream extends EventEmitter {
  readonly id: number;
  readonly chunks: Buffer[] = [];
  replied = false;
  ended = false;
  reset = false;

  constructor(id: number) {
    super();
    this.id = id;
  }

  get text(): string {
    return Buffer.concat(this.chunks).toString();
  }

  /** Resolves when the condition holds. It is checked after each frame of the stream. */
  async until(condition: (stream: this) => boolean): Promise<void> {
    while (!condition(this)) {
      await once(this, 'frame');
    }
  }
}

export class SpdyClient {
  readonly streams = new Map<number, ClientStream>();
  /** Ids of answered pings, and of pings from the server. */
  readonly pings: number[] = [];
  /** Reason of the server's frame GOAWAY. */
  goAway: number | undefined;
  readonly #socket: Duplex;
  readonly #deflate = createDeflate({ dictionary: SPDY_DICTIONARY, flush: constants.Z_SYNC_FLUSH });
  #received = Buffer.alloc(0);
  #next = 1;

  constructor(socket: Duplex) {
    this.#socket = socket;
    socket.on('error', () => undefined);
    socket.on('data', (chunk: Buffer) => this.#take(chunk));
  }

  /** Opens a stream. Streams are opened one after the other, because their headers share one compression. */
  async open(headers: Record<string, string>, { flags = 0 } = {}): Promise<ClientStream> {
    const id = this.#next;
    this.#next += 2;
    const stream = new ClientStream(id);
    this.streams.set(id, stream);
    this.control(
      FRAME.synStream,
      Buffer.concat([uint32(id), uint32(0), Buffer.alloc(2), await this.pack(headers)]),
      flags,
    );
    return stream;
  }

  /** Compresses headers. The compression of later headers depends on them, so they must be sent. */
  async pack(headers: Record<string, string>): Promise<Buffer> {
    const texts = Object.entries(headers)
      .flat()
      .map((text) => Buffer.from(text));
    const block = [uint32(texts.length / 2), ...texts.flatMap((text) => [uint32(text.length), text])];
    return await this.packBytes(Buffer.concat(block));
  }

  async packBytes(bytes: Buffer): Promise<Buffer> {
    const packed: Buffer[] = [];
    const { promise, resolve } = Promise.withResolvers<void>();
    const onData = (chunk: Buffer) => packed.push(chunk);
    this.#deflate.on('data', onData);
    this.#deflate.write(bytes, () => setImmediate(resolve));
    await promise;
    this.#deflate.off('data', onData);
    return Buffer.concat(packed);
  }

  control(type: number, body: Buffer, flags = 0, length = body.length): void {
    this.#socket.write(
      Buffer.concat([Buffer.from([0x80, 3, 0, type, flags]), uint32(length).subarray(1), body]),
    );
  }

  /** Sends data, and the end of the stream with `end`. Returns whether the connection takes more. */
  data({ id }: { id: number }, bytes: Buffer | string, { end = false } = {}): boolean {
    const payload = Buffer.from(bytes);
    const header = [uint32(id), Buffer.from([end ? FIN : 0]), uint32(payload.length).subarray(1)];
    return this.#socket.write(Buffer.concat([...header, payload]));
  }

  /** Sends data in frames of 32 KiB, as fast as the server takes it, then the end. */
  async sendAll(stream: ClientStream, bytes: Buffer): Promise<void> {
    for (let at = 0; at < bytes.length; at += 32_768) {
      if (!this.data(stream, bytes.subarray(at, at + 32_768))) {
        await once(this.#socket, 'drain');
      }
    }
    this.data(stream, '', { end: true });
  }

  resetStream({ id }: { id: number }): void {
    this.control(FRAME.reset, Buffer.concat([uint32(id), uint32(5)]));
  }

  ping(id: number): void {
    this.control(FRAME.ping, uint32(id));
  }

  raw(bytes: Buffer): void {
    this.#socket.write(bytes);
  }

  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  close(): void {
    this.#socket.destroy();
    this.#deflate.close();
  }

  /** Resolves when the server has closed the connection. */
  async closed(): Promise<void> {
    if (!this.#socket.closed) {
      await once(this.#socket, 'close');
    }
  }

  #take(chunk: Buffer): void {
    this.#received = Buffer.concat([this.#received, chunk]);
    while (this.#received.length >= 8) {
      const length = this.#received.readUIntBE(5, 3);
      if (this.#received.length < 8 + length) {
        return;
      }
      this.#frame(this.#received.subarray(0, 8), this.#received.subarray(8, 8 + length));
      this.#received = this.#received.subarray(8 + length);
    }
  }

  #frame(header: Buffer, body: Buffer): void {
    const isControl = header.readUInt8(0) >= 0x80;
    const type = isControl ? header.readUInt16BE(2) : 0;
    if (type === FRAME.ping) {
      this.pings.push(body.readUInt32BE(0));
      return;
    }
    if (type === FRAME.goAway) {
      this.goAway = body.readUInt32BE(4);
      return;
    }
    const stream = this.streams.get(isControl ? body.readUInt32BE(0) : header.readUInt32BE(0));
    if (stream === undefined) {
      throw new Error(`The server sent a frame of type ${type} for a stream that nobody opened`);
    }
    if (!isControl) {
      stream.chunks.push(Buffer.from(body));
    }
    stream.replied ||= type === FRAME.synReply;
    stream.reset ||= type === FRAME.reset;
    stream.ended ||= !isControl && (header.readUInt8(4) & FIN) !== 0;
    stream.emit('frame');
  }
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}
