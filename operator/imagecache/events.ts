/** Records Events of an ImageCacheEntry. */
import type { ImageCacheEntry, ImageCacheEntryStatus } from '../../api/v1alpha1/imagecacheentry.ts';
import { isReason, isSeen } from '../../api/v1alpha1/reasons.ts';
import { conditionIn } from '../objects/conditions.ts';
import { normal, type Recorder, type OperatorEvent, warning } from '../objects/events.ts';

/** Records Events for the changes from an entry's last status to its next status. */
export function recordEntryEvents(
  recorder: Recorder,
  entry: ImageCacheEntry,
  next: ImageCacheEntryStatus,
): void {
  const texts = [...failures(entry.status, next), ...rounds(entry.status, next)];
  texts.forEach((text) => recorder.event(entry, text));
}

function failures(last: ImageCacheEntryStatus | undefined, next: ImageCacheEntryStatus): OperatorEvent[] {
  const before = new Map((last?.nodes ?? []).map((row) => [row.node, row.failures ?? 0]));
  return (next.nodes ?? [])
    .filter((row) => (row.failures ?? 0) > (before.get(row.node) ?? 0))
    .map(({ node, message = '', state, retryAt = '' }) => {
      const reported = `Host ${node}: ${message}; the next attempt is at ${retryAt}`;
      return state === 'Removing'
        ? warning('RemovingFailed', 'Removing', reported)
        : warning('CachingFailed', 'Caching', reported);
    });
}

/** Returns Events for changed conditions of the entry. Failures of single hosts have their own Events. */
function rounds(last: ImageCacheEntryStatus | undefined, next: ImageCacheEntryStatus): OperatorEvent[] {
  return (next.conditions ?? []).flatMap(({ type, status, reason, message }) =>
    isReason(reason) &&
    isSeen(reason, 'ImageCacheEntry', 'Event') &&
    conditionIn(last, type)?.reason !== reason
      ? [(status === 'True' ? normal : warning)(reason, 'Caching', message)]
      : [],
  );
}
