/** Repeats changes of objects that others change at the same time. */
import { retry, type RetryLimits } from '../base/retry.ts';

/**
 * Limits for a change of an object. An attempt fails if somebody else wrote the object since it was read. All waits together take at most
 * 3 s, so a caller still gets an answer.
 */
const LIMITS: RetryLimits = { attempts: 10, firstMilliseconds: 10, capMilliseconds: 250 };

/**
 * Calls `attempt` with the number of the attempt, from 1, until it returns a value. It reads the object, writes it, and returns undefined if
 * somebody else wrote it in the meantime. The result is undefined if somebody else did so in each attempt.
 *
 * @throws the errors of `attempt`; the signal's reason when the signal aborts.
 */
export async function retryChange<T>(
  attempt: (number: number) => Promise<T | undefined>,
  signal?: AbortSignal,
): Promise<T | undefined> {
  return await retry(LIMITS, attempt, { signal });
}
