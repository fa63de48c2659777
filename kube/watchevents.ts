/** The stream of a watch: one event in each line. */
import { ApiError } from './errors.ts';
import type { KubeObject } from './objects.ts';

/** Limit of one line of a watch in bytes. An object has at most 1.5 MB in etcd, so a longer line cannot be an object. */
export const LINE_LIMIT_BYTES = 16 * 1024 * 1024;
/** Time in milliseconds without data after which a watch is resumed. On a live connection, the API server sends a bookmark each minute. */
export const SILENCE_MILLISECONDS = 90_000;

const INITIAL_EVENTS_END = 'k8s.io/initial-events-end';

export interface WatchEvent<T> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  object: T;
}

/**
 * Returns the reason why all objects must be read again. The result is undefined after a lost connection, status 429 or status 503, because
 * the watch can be resumed in these cases.
 */
export function relistReasonOf(error: unknown): string | undefined {
  if (error instanceof ApiError) {
    return error.status === 429 || error.status === 503 ? undefined : String(error.status);
  }
  return error instanceof SyntaxError ? 'malformed' : undefined;
}

/** Returns whether the event tells that a watch has sent all objects that existed at its start. */
export function endsInitialEvents(event: WatchEvent<KubeObject>): boolean {
  return event.type === 'BOOKMARK' && event.object.metadata.annotations?.[INITIAL_EVENTS_END] === 'true';
}
