/** Reads passwords. A password is never an argument, because other users of the computer can see the arguments of a command. */
import { on } from 'node:events';
import { addAbortSignal } from 'node:stream';
import { CommandError, EXIT, Interrupted } from './errors.ts';
import { RawMode, type Terminal } from './terminal.ts';

/** Longest password in characters, as in the HTTP API. */
const PASSWORD_CHARACTERS = 16_384;
const INTERRUPT = '\u0003';
const END = '\u0004';
const BACKSPACE = /[\b\u007f]/;

/**
 * Returns the first line of the standard input if `fromInput` is true. Otherwise asks a person for the password and returns the typed text.
 * `word` names the password in messages, and `longest` is the largest number of characters.
 *
 * @throws CommandError when there is no terminal, or when the length is wrong; Interrupted when the user interrupts the command.
 */
export async function readPassword(
  terminal: Terminal,
  fromInput: boolean,
  { word = 'password', longest = PASSWORD_CHARACTERS } = {},
): Promise<string> {
  const { stdin } = process;
  if (!fromInput && !stdin.isTTY) {
    throw new CommandError(
      'The command cannot ask for the password, because there is no terminal. Use --password-stdin',
      EXIT.usage,
    );
  }
  const password = fromInput ? await firstLine(terminal, stdin, longest) : await typed(terminal, stdin);
  if (password === '' || password.length > longest) {
    throw new CommandError(`The ${word} must have from 1 to ${longest} characters`, EXIT.usage);
  }
  return password;
}

async function firstLine({ signal }: Terminal, stdin: NodeJS.ReadStream, longest: number): Promise<string> {
  let text = '';
  try {
    for await (const piece of addAbortSignal(signal, stdin.setEncoding('utf8'))) {
      text += String(piece);
      if (text.length > longest + 2) {
        break;
      }
    }
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  }
  return text.replace(/\r?\n[\s\S]*$/, '');
}

/**
 * Returns the text that a person types. The terminal is in raw mode, so it does not show the text.
 *
 * @throws Interrupted after Ctrl+C; the signal's reason when the signal aborts.
 */
async function typed({ err, signal }: Terminal, stdin: NodeJS.ReadStream): Promise<string> {
  // The raw mode begins before the question. Otherwise, if a program types the password as soon as the question appears, the terminal could
  // show the password.
  const rawMode = new RawMode();
  let password = '';
  try {
    err('Password: ');
    // This code listens for events, because an iterator would close the standard input. The standard input must stay open until the raw
    // mode ends.
    const pieces = on(stdin.setEncoding('utf8'), 'data', { signal, close: ['end'] });
    // An earlier question might have paused the standard input.
    stdin.resume();
    for await (const [piece] of pieces) {
      for (const character of String(piece)) {
        if (character === INTERRUPT) {
          throw new Interrupted();
        }
        if (character === '\r' || character === '\n' || character === END) {
          return password;
        }
        password = BACKSPACE.test(character) ? password.slice(0, -1) : password + character;
      }
    }
    return password;
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    rawMode[Symbol.dispose]();
    stdin.pause();
    err('\n');
  }
}
