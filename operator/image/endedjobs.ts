/** Determines when the operator deletes the ended Jobs of an Image or ISO. All functions are pure. */
import { soonest } from '../../base/time.ts';
import type { Job } from '../../kube/core.ts';
import { trueCondition } from '../tasks/outcome.ts';
import type { ImageFacts } from './facts.ts';
import type { ObservedImage } from './observe.ts';
import { keptForFile } from './removalrecord.ts';

/**
 * Time in milliseconds for which an ended Job stays. The next attempt needs this Job, because only the Job stores the number of the attempt.
 * Therefore the time is longer than the longest wait between attempts. During this time `kubectl logs` can show the log of the Job.
 */
const KEPT_MILLISECONDS = 3_600_000;

export interface EndedJobs {
  /** Jobs to delete now. The status must contain their results. */
  readonly due: readonly Job[];
  /** Time when the next Job is due, in milliseconds since the epoch. It is undefined if there is no such Job. */
  readonly nextAt: number | undefined;
}

/** Returns which ended Jobs are due. `status` contains the facts of the image that the operator has stored. */
export function endedJobs({ jobs, now }: ObservedImage, status: ImageFacts): EndedJobs {
  const kept = keptForFile(jobs, status);
  const ends = jobs
    .filter((job) => !kept.includes(job))
    .map(({ job }) => ({ job, at: endOf(job) + KEPT_MILLISECONDS }));
  const due = ends.filter(({ at }) => at <= now).map(({ job }) => job);
  return { due, nextAt: soonest(...ends.map(({ at }) => at).filter((at) => at > now)) };
}

/** Returns the time when the Job ended, in milliseconds since the epoch. The result is NaN while the Job has not ended. */
function endOf(job: Job): number {
  const end = trueCondition(job, 'Complete', 'Failed');
  return Date.parse(end?.lastTransitionTime ?? '');
}
