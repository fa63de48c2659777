/** Reads the logs of the programs of Berth. */

/** Number of the level `error` in pino. More severe levels have higher numbers. */
const ERROR_LEVEL = 50;

/** Line of a log. */
export interface LogLine {
  /** Time in the format of RFC 3339. */
  readonly time: string;
  /** A word. In versions before 2026-11-29, it is a number of pino. */
  readonly level: string | number;
  readonly program: string;
  readonly msg: string;
  readonly reconcileID?: string;
  /** Id of a request to the HTTP API. */
  readonly requestID?: string;
  /** New level of the log. */
  readonly logLevel?: string;
  readonly err?: { readonly message: string; readonly status?: number };
}

/**
 * Returns the lines of a log that are JSON. Lines of Node.js itself are left out, and so is a last line that is still being written.
 *
 * @throws Error when {@link readLogLine} cannot read a line.
 */
export function readLogLines(text: string): LogLine[] {
  const lines = text.split('\n').slice(0, -1);
  return lines.filter((line) => line.startsWith('{')).map(readLogLine);
}

/** Reads one line. @throws Error when it is not JSON, or has a key twice, because some programs that collect logs refuse such lines. */
export function readLogLine(line: string): LogLine {
  const read = JSON.parse(line) as LogLine;
  // JSON.parse keeps one value for each key, so the text of the result is shorter if a key was there twice.
  if (typeof read.level === 'string' && JSON.stringify(read).length !== line.length) {
    throw new Error(`a line of the log is not read as it was written: ${line}`);
  }
  return read;
}

export function isError({ level }: LogLine): boolean {
  return typeof level === 'number' ? level >= ERROR_LEVEL : level === 'error' || level === 'fatal';
}
