/** Lines from streams of bytes. The sender may be anybody, so the memory for a line has a limit. */
import type { Duplex } from 'node:stream';

const NEWLINE = 0x0a;

/** Cuts a stream of bytes into lines. It decodes whole lines, so that no character is torn between two chunks. */
export class LineSplitter {
  readonly #limitBytes: number;
  #parts: Buffer[] = [];
  #partsBytes = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /**
   * The lines that this chunk completes, without their ends; empty lines are left out.
   * @throws Error when a line is longer than the limit.
   */
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
      throw new Error(`a line of the stream is longer than ${this.#limitBytes} bytes`);
    }
  }
}

/**
 * Calls `take` with each line that comes over a connection. A line that is too long, or at which `take` throws, ends the
 * connection with that error: nothing is thrown where nobody could catch it.
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
