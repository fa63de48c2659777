/** Turns the records of a console into the text that a reader gets. The options have the same meaning as the options of `kubectl logs`. */
import type { ConsoleRecord } from './records.ts';

export interface ConsoleReadOptions {
  follow?: boolean | undefined;
  tailLines?: number | undefined;
  sinceTime?: Date | undefined;
  /** Limit of the output in bytes. The output can end within a line. */
  limitBytes?: number | undefined;
  /** Whether each line begins with its time. */
  timestamps?: boolean;
  /** Signal that ends the text if `follow` is set. */
  signal?: AbortSignal;
}

/**
 * Turns records into text. Each line of the text ends with a line feed, except perhaps the last one. The last line gets its
 * line feed when the guest or {@link endLine} ends the line.
 */
export class ConsoleText {
  readonly #since: string;
  readonly #timestamps: boolean;
  #remaining: number;
  #open = false;
  /** Whether {@link endLine} has ended the last line, and the guest has not ended this line yet. */
  #endedEarly = false;

  constructor({ sinceTime, timestamps = false, limitBytes }: ConsoleReadOptions) {
    this.#since = sinceTime?.toISOString() ?? '';
    this.#timestamps = timestamps;
    this.#remaining = limitBytes ?? Number.POSITIVE_INFINITY;
  }

  /** Whether the reader's limit of bytes is reached. */
  get full(): boolean {
    return this.#remaining <= 0;
  }

  /** Whether the text so far ends within a line. */
  get isOpen(): boolean {
    return this.#open;
  }

  /**
   * Ends the unfinished line and returns the line feed for it. Call this function only while {@link isOpen} is true. If the rest of the
   * line comes later, the rest becomes a separate line. If only the line feed comes later, the text gets no second line feed.
   */
  endLine(): string {
    this.#open = false;
    this.#endedEarly = true;
    return this.#cut('\n');
  }

  /** Returns the text of the next records. The text can be empty. */
  add(records: readonly ConsoleRecord[]): string {
    let text = '';
    for (const record of records) {
      // All times have the same format, so a comparison of their texts gives their order.
      if (record.time >= this.#since) {
        text += this.#textOf(record);
      }
    }
    return this.#cut(text);
  }

  #textOf({ time, ended, text }: ConsoleRecord): string {
    // A record without text adds nothing in two cases. In the first case, the record only ends a line that `endLine` has already ended. In
    // the second case, the record does not end its line, and had only a carriage return, which was removed.
    const isNothing = text === '' && (this.#endedEarly || !ended);
    this.#endedEarly &&= isNothing && !ended;
    if (isNothing) {
      return '';
    }
    const start = this.#timestamps && !this.#open ? `${time} ` : '';
    this.#open = !ended;
    return `${start}${text}${ended ? '\n' : ''}`;
  }

  #cut(text: string): string {
    if (this.#remaining === Number.POSITIVE_INFINITY) {
      return text;
    }
    const bytes = Buffer.from(text);
    const piece = bytes.subarray(0, Math.max(0, this.#remaining));
    this.#remaining -= bytes.length;
    return piece.toString('utf8');
  }
}
