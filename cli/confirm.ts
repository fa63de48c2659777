/** Asks the user before a command destroys data. */
import { once } from 'node:events';
import { CommandError, EXIT } from './errors.ts';
import type { Terminal } from './terminal.ts';

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
