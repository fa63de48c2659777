/** Determines when an Image is finished, and when its TTL is over. All functions are pure. */
import { timestamp } from '../../base/time.ts';
import type { Image, ImageStatus } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { classOf, type Reason } from '../../api/v1alpha1/reasons.ts';
import type { ImageFacts } from './facts.ts';
import { isOpen, type ObservedImage } from './observe.ts';
import type { ImageProgress } from './operation.ts';

/**
 * Reasons why an Image cannot get the disk of a VM: the VM does not exist, or the VM failed and left no disk. Only a user can create the VM
 * again, so the Image might wait forever. Therefore the Image counts as finished.
 */
const NO_DISK: ReadonlySet<string> = new Set<Reason>(['VMNotFound', 'NoMachine']);

/**
 * Returns the RFC 3339 time when the last work on an Image ended. The result is undefined while work is under way, and for an ISO. The time
 * changes only when a later commit or push ends.
 */
export function finishedTime(
  { object, kind, jobs, now }: ObservedImage,
  { lastCommit, lastPush }: ImageFacts,
  progress: ImageProgress,
): string | undefined {
  // While a Job copies the disk of a VM, the Image is not finished, even if somebody has deleted the VM.
  const isCopying = object.status?.content === undefined && jobs.some(isOpen);
  if (kind !== 'Image' || isCopying || !isFinished(progress)) {
    return undefined;
  }
  const { finishedTime: known = timestamp(now) } = (object.status ?? {}) as ImageStatus;
  const ends = [known, lastCommit?.finishedAt, lastPush?.finishedAt].filter((time) => time !== undefined);
  // All these times have the same format, so a comparison of their texts gives their order.
  return ends.toSorted().at(-1);
}

function isFinished({ operation, blocked }: ImageProgress): boolean {
  return blocked === undefined
    ? operation === undefined
    : NO_DISK.has(blocked.reason) || classOf(blocked.reason, 'Image') === 'final';
}

/**
 * Returns the time when the TTL of a finished Image is over, in milliseconds since the epoch. The TTL starts at `finishedTime` in the
 * stored status. `next` is the newly computed status. The result is undefined if there is no TTL. It is also undefined if the
 * `finishedTime` in `next` differs from the stored one, for example because work is under way again.
 */
export function expiresAt({ spec, status }: Image | ISO, next: ImageStatus): number | undefined {
  const ttlSeconds = 'ttlSecondsAfterFinished' in spec ? spec.ttlSecondsAfterFinished : undefined;
  const { finishedTime: stored } = (status ?? {}) as ImageStatus;
  return ttlSeconds === undefined || stored === undefined || stored !== next.finishedTime
    ? undefined
    : Date.parse(stored) + ttlSeconds * 1000;
}
