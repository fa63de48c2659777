import type { WriteStream } from 'node:tty';
import type { EndingSignal } from './errors.ts';
import { printableLines } from './text.ts';

/**
 * Inputs and outputs of one call of the command: its name, its environment, its output streams, and a signal that aborts when the user
 * interrupts the command. The streams lead to a terminal or to another program. Tests replace the streams with their own functions.
 */
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
  /** Returns the number of columns of the terminal to which the error stream leads. The result is undefined if it leads to no terminal. */
  readonly columns?: () => number | undefined;
  /** Signal that aborts when the user interrupts the command. Its reason is an error of the class Interrupted. */
  readonly signal: AbortSignal;
  /** Interrupts the command, as a signal of the operating system does. Only a command with a process of its own has this function. */
  readonly interrupt?: (cause: EndingSignal) => void;
}

/**
 * Returns a function that writes texts to the stream. If the stream is a terminal, the function removes the characters that control a
 * terminal. The texts of objects can contain such characters, because they can come from people who are not trusted. Output formats do not
 * always escape these characters. JSON, for example, escapes only some of them.
 */
export function writerTo(stream: Pick<WriteStream, 'isTTY' | 'write'>): (text: string) => void {
  return (text) => void stream.write(stream.isTTY ? printableLines(text) : text);
}

/**
 * Puts the user's terminal into raw mode. In this mode, the command gets every key at once, including Ctrl+C, and the terminal does not
 * show the keys. `dispose` ends the raw mode. If the process exits earlier, for example after a second signal, its exit ends the raw mode.
 */
export class RawMode implements Disposable {
  readonly #restore = (): void => {
    process.stdin.setRawMode(false);
  };

  constructor() {
    process.stdin.setRawMode(true);
    process.on('exit', this.#restore);
  }

  [Symbol.dispose](): void {
    process.off('exit', this.#restore);
    this.#restore();
  }
}
