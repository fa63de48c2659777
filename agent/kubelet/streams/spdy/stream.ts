/** One stream of a SPDY connection. */
import { ReceivingStream } from '../received.ts';
import type { Headers } from './headers.ts';

/** The parts of a connection that a stream uses. */
export interface StreamOwner {
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
