import { join } from 'node:path';
import type { Command } from 'commander';
import { expect, it } from 'vitest';
import { createProgram } from '../cli/program.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { listMessages } from './messages.ts';

/** All messages. A text that begins with a backtick is a cell of a table in the documentation. */
const MESSAGES = listMessages(join(import.meta.dirname, '..')).filter((text) => !text.startsWith('`'));
const PROGRAM = await createProgram(makeTerminal(), () => true);
/** Name of the command in a message, or the part that the program fills in with it. */
const NAMES = ['berth', '${}'];

/** Returns the mistake in an advice to run `verb` of `noun`. The result is undefined if a user can type the advice. */
function mistakeIn(text: string, at: number, verb: Command): string | undefined {
  const before =
    text
      .slice(0, at)
      .trimEnd()
      .split(/[\s`"(]+/)
      .at(-1) ?? '';
  if (!NAMES.includes(before)) {
    return 'the name of the command is missing';
  }
  const [line = ''] = text.slice(at).split(/[`"),;]|\.(?:\s|$)| && | and | to /);
  const given = line.split(' ').slice(2);
  const needed = verb.registeredArguments.filter(({ required }) => required);
  return given.length < needed.length ? 'an argument is missing' : undefined;
}

/** Returns the mistakes in the commands of a message. A text that begins with a command is a key of a table, and not a message. */
function mistakes(text: string): string[] {
  return [...text.matchAll(/(?<=[\s`"(])(?=(?<noun>[a-z]+) (?<verb>[a-z-]+)\b)/g)].flatMap(
    ({ index, groups }) => {
      const { noun, verb } = groups ?? {};
      const command = PROGRAM.commands
        .find((one) => one.name() === noun)
        ?.commands.find((one) => one.name() === verb && one.commands.length === 0);
      const mistake = command && mistakeIn(text, index, command);
      return mistake === undefined ? [] : [`${mistake}: ${text}`];
    },
  );
}

it('each command of Berth in a message has its name and its arguments, so that users can type it', () => {
  expect(MESSAGES.some((text) => text.includes('berth node give-up'))).toBe(true);
  expect(MESSAGES.flatMap(mistakes)).toEqual([]);
});
