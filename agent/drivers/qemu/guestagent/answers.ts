/**
 * Splits the output of a guest agent into lines of JSON. Even an honest guest sends up to 16 MiB of a command's output in one string, and a
 * hostile guest can send more. So this code cuts long strings while they arrive, and limits the memory for a line.
 */
import { ByteCollector } from '../../../../base/lines.ts';

const NEWLINE = 0x0a;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;
/** Byte that a guest agent sends before its answer to `guest-sync-delimited`. This byte is never a part of JSON. */
export const DELIMITER = 0xff;

/**
 * Limit of one string in bytes. A longer string is cut. The limit is the length of the base64 text of nearly 4 MiB. The limit is a multiple
 * of four characters, so that a cut text stays valid base64.
 */
export const STRING_LIMIT_BYTES = Math.floor((4 * 1024 * 1024) / 3) * 4;
/** Limit of one line in bytes, after its long strings are cut. The longest honest answer has two long strings and some numbers. */
const LINE_LIMIT_BYTES = 2 * STRING_LIMIT_BYTES + 64 * 1024;

export class AnswerReader {
  /** Beginning of the line that is not complete yet. */
  readonly #begun = new ByteCollector();
  #inString = false;
  #escaped = false;
  #stringBytes = 0;
  /** Whether the first delimiter has arrived. All bytes before the first delimiter are ignored, because they answer an earlier client. */
  #delimited = false;

  /** Returns the lines that this chunk completes, including empty lines. @throws Error when a line is longer than the limit. */
  push(chunk: Buffer): string[] {
    const lines: string[] = [];
    const kept = Buffer.alloc(chunk.length);
    let length = 0;
    for (let at = 0; at < chunk.length; at += 1) {
      const byte = chunk[at] ?? 0;
      if (byte === DELIMITER) {
        this.#delimited = true;
        this.#restart();
        length = 0;
      } else if (byte === NEWLINE && this.#delimited) {
        lines.push(this.#complete(kept.subarray(0, length)));
        length = 0;
      } else if (this.#isKept(byte)) {
        kept[length] = byte;
        length += 1;
      }
    }
    this.#keep(kept.subarray(0, length));
    return lines;
  }

  #restart(): void {
    this.#begun.take();
    this.#inString = false;
  }

  #complete(last: Buffer): string {
    this.#keep(last);
    this.#inString = false;
    return this.#begun.take().toString('utf8');
  }

  #keep(piece: Buffer): void {
    if (this.#begun.length + piece.length > LINE_LIMIT_BYTES) {
      throw new Error(`A line of the guest agent is longer than ${LINE_LIMIT_BYTES} bytes`);
    }
    this.#begun.add(piece);
  }

  /** Returns whether this byte is kept. A byte is cut if it comes before the first delimiter or exceeds the limit of its string. */
  #isKept(byte: number): boolean {
    if (!this.#delimited) {
      return false;
    }
    if (!this.#inString) {
      this.#inString = byte === QUOTE;
      this.#escaped = false;
      this.#stringBytes = 0;
      return true;
    }
    if (byte === QUOTE && !this.#escaped) {
      this.#inString = false;
      return true;
    }
    this.#escaped = byte === BACKSLASH && !this.#escaped;
    this.#stringBytes += 1;
    return this.#stringBytes <= STRING_LIMIT_BYTES;
  }
}
