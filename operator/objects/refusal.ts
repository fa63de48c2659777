/** Handles the refusals of the API server: of a new Pod, Secret or Job, and of a change. */
import { type ApiError, isObjectRefused, isRefusedByRule } from '../../kube/errors.ts';

/** Pattern of the parts in which two errors with one cause can differ: ports, times and ids of requests. */
const CHANGING = /[\da-f]+/gi;

/**
 * Returns the message of the API server for the status. `before` is the message that the status already contains. If the cause is no rule
 * of admission, for example a webhook that cannot be called, the two messages can differ only in a port or a time. The result is then
 * `before`. Otherwise each attempt would change the status, and each change of the status would cause the next attempt at once.
 */
export function refusalMessage(error: Error, before: string | undefined): string {
  const shape = (message: string): string => message.replaceAll(CHANGING, '');
  const isSame = before !== undefined && !isRefusedByRule(error) && shape(before) === shape(error.message);
  return isSame ? before : error.message;
}

/**
 * Waits for a change of an existing object, and returns the observed state after it. If the API server refuses the change, the state stays
 * as it was, and `refused` is the error.
 *
 * @throws any error of the change that is not a refusal
 */
export async function unlessRefused<T>(
  observed: T,
  change: Promise<T>,
): Promise<{ observed: T; refused?: ApiError }> {
  try {
    return { observed: await change };
  } catch (error) {
    if (isObjectRefused(error)) {
      return { observed, refused: error };
    }
    throw error;
  }
}

/** Returns the refusal, unless it is the reason for which the object is blocked. In this case a condition has its words, and needs no Event. */
export function unlessBlocking(
  refused: Error | undefined,
  blocked: { readonly reason: string } | undefined,
): Error | undefined {
  return blocked?.reason === 'PodRefused' ? undefined : refused;
}
