/** The story of an ImageCacheEntry as Events. */
import type { ImageCacheEntry, ImageCacheEntryStatus } from '../../api/v1alpha1/imagecacheentry.ts';
import type { EventRecorder, EventText } from '../../kube/events.ts';

/** Emits what changed between an entry's last status and the next. */
export function recordTransition(
  recorder: EventRecorder,
  entry: ImageCacheEntry,
  next: ImageCacheEntryStatus,
): void {
  const texts = [...failures(entry.status, next), ...turns(entry.status, next)];
  texts.forEach((text) => recorder.event(entry, text));
}

function failures(last: ImageCacheEntryStatus | undefined, next: ImageCacheEntryStatus): EventText[] {
  const before = new Map((last?.nodes ?? []).map((row) => [row.node, row.failures ?? 0]));
  return (next.nodes ?? [])
    .filter((row) => (row.failures ?? 0) > (before.get(row.node) ?? 0))
    .map(({ node, message = '', state, retryAt = '' }) => {
      const action = state === 'Removing' ? 'Removing' : 'Caching';
      const told = `host ${node}: ${message}; tried again at ${retryAt}`;
      return { type: 'Warning', reason: `${action}Failed`, action, message: told };
    });
}

function turns(last: ImageCacheEntryStatus | undefined, next: ImageCacheEntryStatus): EventText[] {
  return (next.conditions ?? [])
    .filter(({ type, reason }) => TOLD.has(reason) && conditionOf(last, type)?.reason !== reason)
    .map(({ status, reason, message }) => {
      const type = status === 'True' ? 'Normal' : 'Warning';
      return { type, reason, action: 'Caching', message };
    });
}

/** Reasons that people wait for, or should look at; a failed host has an Event of its own. */
const TOLD: ReadonlySet<string> = new Set([
  'Cached',
  'DuplicateOf',
  'ImageNotFound',
  'ImageNotReady',
  'Outdated',
]);

function conditionOf(status: ImageCacheEntryStatus | undefined, type: string) {
  return status?.conditions?.find((one) => one.type === type);
}
