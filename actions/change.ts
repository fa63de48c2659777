/** Changes an object that others change at the same time. */
import { retryChange } from '../kube/conflicts.ts';
import { ActionError } from './error.ts';

/**
 * Calls `attempt` until it returns a value. It reads the object, writes it, and returns undefined if somebody else wrote it in the meantime.
 * `describe` returns
 * the name of the object for the message.
 *
 * @throws ActionError when others change the object in each attempt; errors of `attempt`.
 */
export async function changeObject<T>(
  describe: () => string,
  attempt: () => Promise<T | undefined>,
): Promise<T> {
  const changed = await retryChange(attempt);
  if (changed === undefined) {
    throw new ActionError('busy', `Other clients are changing ${describe()}. Try again`);
  }
  return changed;
}
