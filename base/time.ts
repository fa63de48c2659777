/** Functions that wait, and functions that format times in the form that Kubernetes uses. */
import { addAbortListener } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';

/** Longest time of a timer in Node.js, in milliseconds. A longer timer fires after 1 ms. */
export const LONGEST_TIMER_MILLISECONDS = 2_147_483_647;

/** Waits this number of milliseconds. If the signal aborts first, the promise rejects with the signal's reason. */
export async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  try {
    await delay(milliseconds, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  }
}

/** Waits this number of milliseconds. If the signal aborts, the wait ends early without an error. */
export async function rest(milliseconds: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, milliseconds);
  using _listener = addAbortListener(signal, () => resolve());
  await promise;
  clearTimeout(timer);
}

/** Returns the smallest of the given times or durations. Undefined and NaN are skipped. The result is undefined if no value is left. */
export function soonest(...moments: readonly (number | undefined)[]): number | undefined {
  let first: number | undefined;
  for (const moment of moments) {
    if (moment !== undefined && !Number.isNaN(moment) && (first === undefined || moment < first)) {
      first = moment;
    }
  }
  return first;
}

/**
 * Formats a time as RFC 3339 with whole seconds, like `metav1.Time`. The API server removes fractions of a second. If Berth wrote
 * fractions, the object in the API server's answer would differ from the written object.
 */
export function timestamp(millisecondsSince1970: number): string {
  return `${new Date(millisecondsSince1970).toISOString().slice(0, 19)}Z`;
}

/** Formats a time as RFC 3339 with microseconds, for Leases and Events. The API server refuses a time with fewer digits. */
export function microTime(millisecondsSince1970: number): string {
  return new Date(millisecondsSince1970).toISOString().replace('Z', '000Z');
}
