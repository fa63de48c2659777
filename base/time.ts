/** Waits, and times in the formats of Kubernetes. */
import { setTimeout as delay } from 'node:timers/promises';

/** Waits. If the signal aborts first, the promise rejects with the signal's reason. */
export async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  try {
    await delay(milliseconds, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  }
}

/** Waits, but ends early without an error when the signal aborts. */
export async function rest(milliseconds: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) {
    return;
  }
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, milliseconds);
  const onAbort = () => resolve();
  signal.addEventListener('abort', onAbort, { once: true });
  await promise;
  clearTimeout(timer);
  signal.removeEventListener('abort', onAbort);
}

/** Returns the smallest of the moments or waits that are known. The result is undefined if all are unknown. */
export function soonest(...moments: readonly (number | undefined)[]): number | undefined {
  let first: number | undefined;
  for (const moment of moments) {
    if (moment !== undefined && !Number.isNaN(moment) && (first === undefined || moment < first)) {
      first = moment;
    }
  }
  return first;
}

/** Formats a time as RFC 3339 with whole seconds, like `metav1.Time`. The API server would drop fractions, and its answer would differ. */
export function timestamp(millisecondsSince1970: number): string {
  return `${new Date(millisecondsSince1970).toISOString().slice(0, 19)}Z`;
}

/** Formats a time as RFC 3339 with microseconds, for Leases and Events. The API server refuses fewer digits. */
export function microTime(millisecondsSince1970: number): string {
  return new Date(millisecondsSince1970).toISOString().replace('Z', '000Z');
}
