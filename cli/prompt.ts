/** Asks people before a command destroys data, and reads passwords. A password is an argument only in scripts for another platform, with a warning, because other users of the computer see arguments. */
import { on, once } from 'node:events';
import { addAbortSignal } from 'node:stream';
import { CommandError, EXIT, Interrupted } from './errors.ts';
import { RawMode, type Terminal } from './terminal.ts';

/**
 * Asks the question, and resolves if the user answers yes. If no person is at a terminal, resolves without a question, because a script
 * could not answer. Also asks no question if the environment has the variable `CI`, because some CI systems run scripts in a terminal.
 *
 * @throws CommandError when the user does not answer yes; the signal's reason when the signal aborts.
 */
export async function confirm(
  { environment, err, isForPeople, signal }: Terminal,
  question: string,
): Promise<void> {
  const { stdin } = process;
  if (!isForPeople || !stdin.isTTY || environment['CI'] !== undefined) {
    return;
  }
  err(`${question} [y/N] `);
  const answer = await lineOf(stdin, signal);
  if (answer === '') {
    err('\n');
  }
  if (!/^y(es)?$/i.test(answer.trim())) {
    throw new CommandError('You did not answer yes, so nothing was changed', EXIT.interrupted);
  }
}

/**
 * Returns the next line that the user types. If the input ends without a line, the result is empty.
 *
 * @throws the signal's reason when the signal aborts.
 */
async function lineOf(stdin: NodeJS.ReadStream, signal: AbortSignal): Promise<string> {
  try {
    const events = ['data', 'end'].map(async (event) => (await once(stdin, event, { signal })) as unknown[]);
    const [piece = ''] = await Promise.race(events);
    return String(piece);
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    stdin.pause();
  }
}

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
