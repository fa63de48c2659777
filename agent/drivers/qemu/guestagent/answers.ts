/**
 * Reads the answers of a guest agent: lines of JSON. A guest can send any bytes, so each command states the largest answer that it accepts.
 * A longer or more complex answer is refused while it arrives. See `base/json.ts` for the reason.
 */
import { JsonCheck, JsonError, type JsonLimits } from '../../../../base/json.ts';
import { ByteCollector } from '../../../../base/lines.ts';

const NEWLINE = 0x0a;
/** Byte that a guest agent sends before its answer to `guest-sync-delimited`. This byte is never a part of JSON. */
export const DELIMITER = 0xff;

/** Limits of most answers. An honest one has a few hundred bytes: a number, a name, the facts about a system or one sentence. */
const SHORT_ANSWER: JsonLimits = { bytes: 4 * 1024, items: 64 };

/** Reads one line. Both functions throw JsonError for a line that is not accepted. */
export interface LineReader {
  /** Takes the next bytes of the line, without the line end. */
  push(piece: Buffer): void;
  /** Returns the value of the complete line. */
  end(): unknown;
}

/** Line of the guest agent: its value, or the error if the line was refused, or `unread` if it is empty or nobody asked for it. */
export type Line = { value: unknown } | { refused: JsonError } | 'unread';

/** Reads a line that contains JSON. */
export class JsonLine implements LineReader {
  readonly #check: JsonCheck;
  readonly #collector = new ByteCollector();

  constructor(limits = SHORT_ANSWER) {
    this.#check = new JsonCheck(limits);
  }

  push(piece: Buffer): void {
    this.#check.push(piece);
    this.#collector.add(piece);
  }

  end(): unknown {
    return this.#check.parse(this.#collector.take());
  }
}

/** Splits the bytes of a guest agent into lines. */
export class AnswerReader {
  readonly #next: () => LineReader | undefined;
  /** Reader of the line that has begun, or `unread` if the bytes of the line are dropped. Undefined before the first byte of a line. */
  #line: LineReader | 'unread' | undefined;
  /** Whether the first delimiter has arrived. All bytes before the first delimiter are ignored, because they answer an earlier client. */
  #delimited = false;

  /** `next` is called at the beginning of each line, and returns the reader of this line. Without a reader, the line is not read. */
  constructor(next: () => LineReader | undefined) {
    this.#next = next;
  }

  /** Yields the lines that this chunk completes. A refused line is yielded at once, and as `unread` when it is complete. */
  *push(chunk: Buffer): Generator<Line, void> {
    let start = 0;
    for (let end = chunk.indexOf(DELIMITER); end >= 0; end = chunk.indexOf(DELIMITER, start)) {
      yield* this.#lines(chunk.subarray(start, end));
      // The delimiter drops the line that has begun. That line is the incomplete answer to an earlier client.
      this.#line = undefined;
      this.#delimited = true;
      start = end + 1;
    }
    yield* this.#lines(chunk.subarray(start));
  }

  *#lines(bytes: Buffer): Generator<Line, void> {
    if (!this.#delimited) {
      return;
    }
    let start = 0;
    for (let end = bytes.indexOf(NEWLINE); end >= 0; end = bytes.indexOf(NEWLINE, start)) {
      yield* this.#read(bytes.subarray(start, end));
      yield this.#complete();
      start = end + 1;
    }
    yield* this.#read(bytes.subarray(start));
  }

  *#read(piece: Buffer): Generator<Line, void> {
    if (piece.length === 0) {
      return;
    }
    this.#line ??= this.#next() ?? 'unread';
    if (this.#line === 'unread') {
      return;
    }
    try {
      this.#line.push(piece);
    } catch (error) {
      this.#line = 'unread';
      yield refusalOf(error);
    }
  }

  #complete(): Line {
    const line = this.#line ?? 'unread';
    this.#line = undefined;
    if (line === 'unread') {
      return line;
    }
    try {
      return { value: line.end() };
    } catch (error) {
      return refusalOf(error);
    }
  }
}

/** @throws the error itself when it is not a JsonError. */
function refusalOf(error: unknown): Line {
  if (error instanceof JsonError) {
    return { refused: error };
  }
  throw error;
}
