/** What a reader of a console asked for, out of the stored records; the meaning of the options is that of `kubectl logs`. */

/** A line, or, where `ended` is false, a piece of one. */
export interface ConsoleRecord {
  /** RFC 3339, when it was seen. */
  time: string;
  ended: boolean;
  text: string;
}

export interface ConsoleReadOptions {
  follow?: boolean;
  tailLines?: number;
  sinceTime?: Date;
  /** Ends the output, also within a line. */
  limitBytes?: number;
  /** Each line begins with its time. */
  timestamps?: boolean;
  /** Ends a follow. */
  signal?: AbortSignal;
}

const RECORD = /^(\S+) ([FP]) (.*)$/s;

/** Undefined for what is no record, such as a line cut off by a power failure. */
export function parseRecord(line: string): ConsoleRecord | undefined {
  const match = RECORD.exec(line);
  if (match === null) {
    return undefined;
  }
  const [, time = '', kind, text = ''] = match;
  return { time, ended: kind === 'F', text };
}

/** Records as text: each line with a line feed, except the one that the guest has not ended. */
export class ConsoleText {
  readonly #since: string;
  readonly #timestamps: boolean;
  #remaining: number;
  #open = false;

  constructor({ sinceTime, timestamps = false, limitBytes }: ConsoleReadOptions) {
    this.#since = sinceTime?.toISOString() ?? '';
    this.#timestamps = timestamps;
    this.#remaining = limitBytes ?? Number.POSITIVE_INFINITY;
  }

  /** Nothing more is wanted. */
  get full(): boolean {
    return this.#remaining <= 0;
  }

  /** The text of the next records, which may be empty. */
  add(records: readonly ConsoleRecord[]): string {
    let text = '';
    for (const { time, ended, text: piece } of records) {
      // Times are all written the same way, so their texts have their order.
      if (time < this.#since) {
        continue;
      }
      text += `${this.#timestamps && !this.#open ? `${time} ` : ''}${piece}${ended ? '\n' : ''}`;
      this.#open = !ended;
    }
    return this.#cut(text);
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
