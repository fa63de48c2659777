/** An object is at most 1.5 MB in etcd's form; a longer line than this is no object. */
export const LINE_LIMIT_BYTES = 16 * 1024 * 1024;

const NEWLINE = 0x0a;

/** Cuts a stream of bytes into lines. A line is decoded whole, so that no character is torn between two chunks. */
export class LineSplitter {
  readonly #limitBytes: number;
  #parts: Buffer[] = [];
  #partsBytes = 0;

  constructor(limitBytes = LINE_LIMIT_BYTES) {
    this.#limitBytes = limitBytes;
  }

  /** The lines that this chunk completes, without their ends; empty lines are left out. Throws when one is too long. */
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
    if (this.#parts.length === 0) {
      return last.toString('utf8');
    }
    const line = Buffer.concat([...this.#parts, last]).toString('utf8');
    this.#parts = [];
    this.#partsBytes = 0;
    return line;
  }

  #keep(part: Buffer): void {
    this.#partsBytes += part.length;
    if (this.#partsBytes > this.#limitBytes) {
      throw new Error(`a line of the stream is longer than ${this.#limitBytes} bytes`);
    }
    this.#parts.push(part);
  }
}
