/** Limits the memory of the data that a client has sent and that nobody has read yet. */
import { Duplex } from 'node:stream';

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
