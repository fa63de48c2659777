/** Repeats an attempt that can fail for a moment: with a bound, and with growing random waits. */
import { Backoff } from './backoff.ts';
import { pause } from './time.ts';

export interface RetryLimits {
  /** Largest number of attempts. */
  readonly attempts: number;
  /** Shortest and longest wait between two attempts in milliseconds. The random part at most doubles a wait. */
  readonly firstMilliseconds: number;
  readonly capMilliseconds: number;
}

export interface RetryOptions {
  /** Signal that ends the waits. */
  readonly signal?: AbortSignal | undefined;
  /** Clock that waits. */
  readonly wait?: typeof pause;
  /** Function that returns a random number between 0 and 1. */
  readonly random?: () => number;
}

/**
 * Calls `attempt` with the number of the attempt, from 1, until it returns a value. Returns undefined if no attempt returned one. The waits
 * are random, because clients that change the same object at the same time would otherwise meet again at each attempt.
 *
 * @throws the errors of `attempt`, at once; the signal's reason when the signal aborts during a wait.
 */
export async function retry<T>(
  { attempts, ...waits }: RetryLimits,
  attempt: (number: number) => Promise<T | undefined>,
  { signal, wait = pause, random }: RetryOptions = {},
): Promise<T | undefined> {
  const backoff = new Backoff({ ...waits, jitter: 1, ...(random !== undefined && { random }) });
  for (let number = 1; ; number += 1) {
    const result = await attempt(number);
    if (result !== undefined || number >= attempts) {
      return result;
    }
    await wait(backoff.next(), signal);
  }
}
