/** Reads so and so many bytes at a time from what comes in pieces of any size. */
export class ByteReader {
  readonly #source: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Fewer only at the end of the source. For small counts: they are held together. */
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

  /** At most so many of what is there; none at the end of the source. */
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

  /** Passes over the rest. */
  async drain(): Promise<void> {
    this.#rest = Buffer.alloc(0);
    while ((await this.#source.next()).done !== true) {
      // Nobody wants it.
    }
  }
}
