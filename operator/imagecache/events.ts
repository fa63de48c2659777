/** Records Events of an ImageCacheEntry. */
import type { ImageCacheEntry, ImageCacheEntryStatus } from '../../api/v1alpha1/imagecacheentry.ts';
import { isReason, isSeen, type SaidReason } from '../../api/v1alpha1/reasons.ts';
import { conditionIn } from '../objects/conditions.ts';
import type { EventRecorder, EventText } from '../../kube/events.ts';

/** Records Events for the changes from an entry's last status to its next status. */
export function recordEntryEvents(
  recorder: EventRecorder<SaidReason>,
  entry: ImageCacheEntry,
  next: ImageCacheEntryStatus,
): void {
  const texts = [...failures(entry.status, next), ...turns(entry.status, next)];
  texts.forEach((text) => recorder.event(entry, text));
}

function failures(
  last: ImageCacheEntryStatus | undefined,
  next: ImageCacheEntryStatus,
): EventText<SaidReason>[] {
  const before = new Map((last?.nodes ?? []).map((row) => [row.node, row.failures ?? 0]));
  return (next.nodes ?? [])
    .filter((row) => (row.failures ?? 0) > (before.get(row.node) ?? 0))
    .map(({ node, message = '', state, retryAt = '' }) => {
      const told = `Host ${node}: ${message}; the next attempt is at ${retryAt}`;
      return state === 'Removing'
        ? { type: 'Warning', reason: 'RemovingFailed', action: 'Removing', message: told }
        : { type: 'Warning', reason: 'CachingFailed', action: 'Caching', message: told };
    });
}

/** Returns Events for changed conditions of the entry. Failures of single hosts have their own Events. */
function turns(
  last: ImageCacheEntryStatus | undefined,
  next: ImageCacheEntryStatus,
): EventText<SaidReason>[] {
  return (next.conditions ?? []).flatMap(({ type, status, reason, message }) =>
    isReason(reason) &&
    isSeen(reason, 'ImageCacheEntry', 'Event') &&
    conditionIn(last, type)?.reason !== reason
      ? [{ type: status === 'True' ? 'Normal' : 'Warning', reason, action: 'Caching', message }]
      : [],
  );
}
