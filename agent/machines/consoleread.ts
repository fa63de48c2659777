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
  if (match === null) return undefined;
  const [, time = '', kind, text = ''] = match;
  return { time, ended: kind === 'F', text };
}

/** One text per line; only a last one without its end is without a line feed. */
export function select(records: ConsoleRecord[], options: ConsoleReadOptions): string[] {
  const since = options.sinceTime?.getTime();
  const wanted =
    since === undefined ? records : records.filter(({ time }) => new Date(time).getTime() >= since);
  const lines: string[] = [];
  let open: string | undefined;
  for (const { time, ended, text } of wanted) {
    const start = open ?? (options.timestamps === true ? `${time} ` : '');
    open = start + text;
    if (ended) {
      lines.push(`${open}\n`);
      open = undefined;
    }
  }
  if (open !== undefined) lines.push(open);
  const { tailLines } = options;
  return tailLines === undefined ? lines : lines.slice(Math.max(0, lines.length - tailLines));
}
