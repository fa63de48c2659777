import type { WriteStream } from 'node:tty';
import { printableLines } from './text.ts';

/** Where one call of the command reads and writes: the terminal of a person, or a program in its place. Tests bring their own. */
export interface Terminal {
  /** Name under which the command was started, for example `berth` or `kubectl berth`. */
  readonly name: string;
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** Writes to the standard output. */
  readonly out: (text: string) => void;
  /** Writes to the error stream. */
  readonly err: (text: string) => void;
  /** Whether a person reads the error stream. */
  readonly isForPeople: boolean;
  /** Aborts with an Interrupted when the user ends the command. */
  readonly signal: AbortSignal;
}

/**
 * Returns a function that writes to the standard output. On a terminal, it leaves out everything that controls it, because texts of objects may
 * be from people who are not trusted. JSON, for example, escapes only a part of the control characters.
 */
export function writerTo(stream: Pick<WriteStream, 'isTTY' | 'write'>): (text: string) => void {
  return (text) => void stream.write(stream.isTTY ? printableLines(text) : text);
}
