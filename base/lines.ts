/** Cuts streams of bytes into lines. The length of a line is limited, because an untrusted sender could otherwise fill the memory. */
import type { Duplex } from 'node:stream';

const NEWLINE = 0x0a;

/** Cuts a stream of bytes into lines. Only complete lines are decoded, because a character can be split between two chunks. */
export class LineSplitter {
  readonly #limitBytes: number;
  #parts: Buffer[] = [];
  #partsBytes = 0;

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
    this.#count(last);
    const line = this.#parts.length === 0 ? last : Buffer.concat([...this.#parts, last]);
    this.#parts = [];
    this.#partsBytes = 0;
    return line.toString('utf8');
  }

  #keep(part: Buffer): void {
    this.#count(part);
    this.#parts.push(part);
  }

  #count(part: Buffer): void {
    this.#partsBytes += part.length;
    if (this.#partsBytes > this.#limitBytes) {
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
