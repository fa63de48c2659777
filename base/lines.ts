/** Cuts streams of bytes into lines. The length of a line is limited, because an untrusted sender could otherwise fill the memory. */
import type { Duplex } from 'node:stream';

const NEWLINE = 0x0a;

/**
 * Collects pieces of bytes in one buffer, which doubles its size when it is full. A list of the pieces would need much more memory than
 * their bytes, because an untrusted sender can send single bytes.
 */
export class ByteCollector {
  #buffer = Buffer.alloc(0);
  #length = 0;

  /** Number of bytes that were added since the last call of {@link take}. */
  get length(): number {
    return this.#length;
  }

  add(piece: Buffer): void {
    const length = this.#length + piece.length;
    if (length > this.#buffer.length) {
      const larger = Buffer.alloc(Math.max(length, 2 * this.#buffer.length));
      this.#buffer.copy(larger, 0, 0, this.#length);
      this.#buffer = larger;
    }
    piece.copy(this.#buffer, this.#length);
    this.#length = length;
  }

  /** Returns all collected bytes, and begins again without bytes. */
  take(): Buffer {
    const bytes = this.#buffer.subarray(0, this.#length);
    this.#buffer = Buffer.alloc(0);
    this.#length = 0;
    return bytes;
  }
}

/** Cuts a stream of bytes into lines. Only complete lines are decoded, because a character can be split between two chunks. */
export class LineSplitter {
  readonly #limitBytes: number;
  /** Beginning of the line that is not complete yet. */
  readonly #begun = new ByteCollector();

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /** Returns the lines that this chunk completes, without line ends. Empty lines are left out. @throws Error when a line is too long. */
  push(chunk: Buffer): string[] {
    const lines: string[] = [];
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      const line = this.#complete(chunk.subarray(start, end));
      if (line !== '') {
        lines.push(line);
      }
      start = end + 1;
    }
    if (start < chunk.length) {
      this.#keep(chunk.subarray(start));
    }
    return lines;
  }

  #complete(last: Buffer): string {
    if (this.#begun.length === 0) {
      this.#requireShort(last);
      return last.toString('utf8');
    }
    this.#keep(last);
    return this.#begun.take().toString('utf8');
  }

  #keep(part: Buffer): void {
    this.#requireShort(part);
    this.#begun.add(part);
  }

  #requireShort(part: Buffer): void {
    if (this.#begun.length + part.length > this.#limitBytes) {
      throw new Error(`A line of the stream is longer than ${this.#limitBytes} bytes`);
    }
  }
}

/**
 * Calls `take` with each line from a connection. If a line is too long or `take` throws, the error destroys the connection. The error is
 * not thrown, because nobody could catch it in an event handler.
 */
export function readLines(connection: Duplex, limitBytes: number, take: (line: string) => void): void {
  const splitter = new LineSplitter(limitBytes);
  connection.on('data', (chunk: Buffer) => {
    try {
      for (const line of splitter.push(chunk)) {
        if (connection.destroyed) {
          return;
        }
        take(line);
      }
    } catch (error) {
      connection.destroy(error instanceof Error ? error : new Error(String(error)));
    }
  });
}
