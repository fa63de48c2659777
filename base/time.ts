/** Functions that wait, that limit how long this process works without a pause, and that format times in the form that Kubernetes uses. */
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

/** Returns the result of `promise`. @throws the signal's reason when the signal aborts first. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: left, reject } = Promise.withResolvers<never>();
  using _listener = addAbortListener(signal, () => reject(signal.reason));
  return await Promise.race([promise, left]);
}

/**
 * Longest work in one turn of the event loop, in milliseconds. During the work, no timer fires and no answer of the network is read. A
 * renewal of a lease, for example, is late by at most the sum of this time and the time of one piece of work. The limit is not shorter,
 * because a pause after each piece of a long list would double the time for reading the list.
 */
const SLICE_MILLISECONDS = 5;

/** Time, as in `performance.now`, at which the first work in this turn of the event loop began. */
let began: number | undefined;

/** Marks the beginning of work. The work of several callers in one turn of the event loop counts together. */
export function beginSlice(): number {
  if (began === undefined) {
    began = performance.now();
    setImmediate(() => (began = undefined));
  }
  return began;
}

/** Returns true if the work in this turn took too long. Further work must then wait for the next turn, for example by `setImmediate`. */
export function isSliceOver(): boolean {
  return performance.now() - beginSlice() > SLICE_MILLISECONDS;
}
