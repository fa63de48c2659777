/** Waiting, and times as Kubernetes writes them. */
import { setTimeout as delay } from 'node:timers/promises';

/** Waits; rejects with the signal's reason when it aborts first. */
export async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  try {
    await delay(milliseconds, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  }
}

/** Waits, but no longer than until the signal aborts. */
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

/** The earliest of the moments, or the shortest of the waits, that are known; undefined when none is. */
export function soonest(...moments: readonly (number | undefined)[]): number | undefined {
  let first: number | undefined;
  for (const moment of moments) {
    if (moment !== undefined && !Number.isNaN(moment) && (first === undefined || moment < first)) {
      first = moment;
    }
  }
  return first;
}

/** RFC 3339 with whole seconds, as `metav1.Time`: the API server keeps no more, so anything finer would differ from its answer. */
export function timestamp(millisecondsSince1970: number): string {
  return `${new Date(millisecondsSince1970).toISOString().slice(0, 19)}Z`;
}

/** RFC 3339 with microseconds, as Leases and Events have it: the API server refuses fewer digits. */
export function microTime(millisecondsSince1970: number): string {
  return new Date(millisecondsSince1970).toISOString().replace('Z', '000Z');
}
