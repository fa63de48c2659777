/** Determines when the operator deletes the ended Jobs of an Image or ISO. All functions are pure. */
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { soonest } from '../../base/time.ts';
import type { Job } from '../../kube/job.ts';
import type { ImageFacts } from './facts.ts';
import type { ImageJob, ObservedImage } from './observe.ts';
import { targetFile } from './removalrecord.ts';

/**
 * Time in milliseconds for which an ended Job stays. The next attempt needs this Job, because only the Job stores the number of the attempt.
 * Therefore the time is longer than the longest wait between attempts. During this time `kubectl logs` can show the log of the Job.
 */
const KEPT_MILLISECONDS = 3_600_000;

/** Reasons of failures that the Job reports, because its host did not. */
const UNREPORTED: ReadonlySet<string> = new Set<Reason>([
  'DeadlineExceeded',
  'BackoffLimitExceeded',
  'JobFailed',
]);

export interface EndedJobs {
  /** Jobs to delete now. The status must contain their results. */
  readonly due: readonly Job[];
  /** Time when the next Job is due, in milliseconds since the epoch. It is undefined if there is no such Job. */
  readonly nextAt: number | undefined;
}

/** Returns which ended Jobs are due. `status` contains the facts of the image that the operator has stored. */
export function endedJobs({ jobs, now }: ObservedImage, status: ImageFacts): EndedJobs {
  const ends = jobs
    .filter((job) => !mayHaveLeftFile(job, status))
    .map(({ job }) => ({ job, at: endOf(job) + KEPT_MILLISECONDS }));
  const due = ends.filter(({ at }) => at <= now).map(({ job }) => job);
  return { due, nextAt: soonest(...ends.map(({ at }) => at).filter((at) => at > now)) };
}

/**
 * Returns true if only the Job tells that a file might have to be removed: its host ended during the attempt, and has removed nothing. The
 * removal is recorded when the first content exists or has finally failed.
 */
function mayHaveLeftFile({ job, outcome }: ImageJob, { content, contentFailure }: ImageFacts): boolean {
  const isOpen = content === undefined && contentFailure === undefined;
  return (
    isOpen && outcome.kind === 'failed' && UNREPORTED.has(outcome.reason) && targetFile(job) !== undefined
  );
}

/** Returns the time when the Job ended, in milliseconds since the epoch. The result is NaN while the Job has not ended. */
function endOf({ status }: Job): number {
  const end = status?.conditions?.find(
    (condition) =>
      (condition.type === 'Complete' || condition.type === 'Failed') && condition.status === 'True',
  );
  return Date.parse(end?.lastTransitionTime ?? '');
}
