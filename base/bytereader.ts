/** Reads a given number of bytes at a time from a source that delivers pieces of any size. Reads the source only while a caller waits. */
export class ByteReader {
  readonly #source: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Reads `count` bytes, or fewer at the end of the source. Use small counts only, because the result holds all bytes in memory. */
  async read(count: number): Promise<Buffer> {
    const parts: Buffer[] = [];
    let missing = count;
    while (missing > 0) {
      const bytes = await this.some(missing);
      if (bytes.length === 0) {
        break;
      }
      parts.push(bytes);
      missing -= bytes.length;
    }
    return parts.length === 1 && parts[0] !== undefined ? parts[0] : Buffer.concat(parts);
  }

  /** Returns the next bytes of the source: at least 1 and at most `limit`, or none if the source has ended. */
  async some(limit: number): Promise<Buffer> {
    while (this.#rest.length === 0) {
      const { done, value } = await this.#source.next();
      if (done === true) {
        return Buffer.alloc(0);
      }
      this.#rest = value;
    }
    const bytes = this.#rest.subarray(0, limit);
    this.#rest = this.#rest.subarray(bytes.length);
    return bytes;
  }

  /** Reads the rest of the source and drops it. */
  async drain(): Promise<void> {
    this.#rest = Buffer.alloc(0);
    let isDone = false;
    while (!isDone) {
      isDone = (await this.#source.next()).done === true;
    }
  }
}
