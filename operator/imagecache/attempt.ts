/** Determines the state of the last attempt on a host, and the time of the next attempt after a failure. All functions are pure. */
import { timestamp } from '../../base/time.ts';
import { waitAfter } from '../../base/backoff.ts';
import { NODE_MESSAGE_LENGTH, type NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { waitAsked } from '../../api/v1alpha1/reasons.ts';
import { keepEnd } from '../../api/v1alpha1/status.ts';
import type { OperatorConfig } from '../config/config.ts';
import { type CacheJob, type ObservedEntry } from './observed.ts';

/**
 * Longest wait in milliseconds between attempts. With this limit, each host sends about ten requests to a registry that is unreachable for
 * a night.
 */
const RETRY_CAP_MILLISECONDS = 3_600_000;
/**
 * Largest number of characters that stay at the beginning of a message that is too long. The beginning contains the reason of the failure, and the
 * end contains the latest output. Therefore only the middle is cut out.
 */
const BEGINNING_LENGTH = 60;

/**
 * Reason of the failure when a host did not get the image before its deadline. Kubernetes uses the same reason for a Job that exceeds its
 * deadline.
 */
export const DEADLINE = 'DeadlineExceeded';

export interface AttemptFailure {
  readonly message: string;
  /** Wait in milliseconds before the next attempt that a server asked for. */
  readonly retryAfterMilliseconds?: number | undefined;
}

export type Attempt =
  /** There is no Job for the current attempt. The state of the host in the entry's status shows how an earlier Job ended. */
  | { readonly kind: 'none' }
  | { readonly kind: 'underWay'; readonly job: CacheJob; readonly wakeAt: number | undefined }
  | { readonly kind: 'succeeded'; readonly at: number; readonly digest: string | undefined }
  | ({ readonly kind: 'failed' } & AttemptFailure)
  /** The Job did not get to the host in time. `message` tells why. */
  | { readonly kind: 'unscheduled'; readonly message: string };

/** Result of an attempt, for metrics. */
export type AttemptResult = 'succeeded' | 'failed' | 'unscheduled';

/**
 * Returns the key of the current attempt on a host. The argument is the host's row: its state in the entry's status. A Job with another key
 * belongs to an earlier attempt, so its result is ignored.
 */
export function attemptKey({ queuedAt = '', triedAt = '', failures = 0 }: NodeCacheState): string {
  return `${queuedAt} ${triedAt} ${failures}`;
}

export function attemptOf(
  job: CacheJob | undefined,
  row: NodeCacheState | undefined,
  observed: ObservedEntry,
): Attempt {
  if (job === undefined || row === undefined || job.attempt !== attemptKey(row)) {
    return { kind: 'none' };
  }
  return progressOf(job, observed);
}

function progressOf(job: CacheJob, observed: ObservedEntry): Attempt {
  const { now, config } = observed;
  const { outcome, isScheduled, isParked, createdAt } = job;
  if (outcome.kind === 'failed') {
    const { reason, message, retryAfterMilliseconds } = outcome;
    return {
      kind: 'failed',
      message: message === '' ? reason : `${reason}: ${message}`,
      retryAfterMilliseconds,
    };
  }
  if (outcome.kind === 'succeeded') {
    const at = Date.parse(outcome.finishedAt ?? '');
    return { kind: 'succeeded', at: Number.isNaN(at) ? createdAt : at, digest: outcome.report.digest };
  }
  const end = isScheduled || isParked ? undefined : createdAt + config.cacheSlotWaitSeconds * 1000;
  return end !== undefined && now >= end
    ? { kind: 'unscheduled', message: whyUnscheduled(job, observed) }
    : { kind: 'underWay', job, wakeAt: end };
}

/**
 * Returns the next row (the state of one host in the entry's status) after a failed attempt. The wait before the next attempt grows with
 * each failure, and is at least the wait that a server asked for.
 */
export function failedRow(
  row: NodeCacheState,
  state: NodeCacheState['state'],
  { message, retryAfterMilliseconds }: AttemptFailure,
  { config, now }: { config: OperatorConfig; now: number },
): NodeCacheState {
  const failures = (row.failures ?? 0) + 1;
  const own = waitAfter(failures, config.cacheRetrySeconds * 1000, RETRY_CAP_MILLISECONDS);
  const wait = waitAsked(own, retryAfterMilliseconds);
  return {
    node: row.node,
    state,
    message: shortened(message, NODE_MESSAGE_LENGTH),
    failures,
    retryAt: timestamp(now + wait),
    ...(row.refresh === true && { refresh: true }),
  };
}

/** Beginning of the message in the row of a host whose Job has no Pod, because the API server refuses the Pod. */
const POD_REFUSED = 'PodRefused: ';

function refusedPod({ outcome }: CacheJob): string | undefined {
  return outcome.kind === 'waiting' && outcome.reason === 'PodRefused'
    ? shortened(POD_REFUSED + outcome.message, NODE_MESSAGE_LENGTH)
    : undefined;
}

function whyUnscheduled(job: CacheJob, { config }: ObservedEntry): string {
  const { obstacle } = job;
  const refused = refusedPod(job);
  if (refused !== undefined) {
    return refused;
  }
  const cause = obstacle === undefined ? '' : `: ${obstacle}`;
  return `NotScheduled: the Job was not scheduled within ${config.cacheSlotWaitSeconds} s${cause}`;
}

/** Returns the next row of a host whose Job did not get to the host in time. `message` tells why. */
export function triedRow(row: NodeCacheState, message: string, { now }: ObservedEntry): NodeCacheState {
  return { ...row, triedAt: timestamp(now), message };
}

/**
 * Returns the row of a host whose Job is under way. Messages stay until the Job is on the host. The message about a refused Pod goes as soon
 * as the scheduler has seen a Pod.
 */
export function underWayRow(row: NodeCacheState, job: CacheJob): NodeCacheState {
  const { message, ...rest } = row;
  const refused = refusedPod(job);
  if (refused !== undefined) {
    return { ...row, message: refused };
  }
  const isOutdated = job.obstacle !== undefined && message?.startsWith(POD_REFUSED) === true;
  return job.isScheduled || isOutdated ? rest : row;
}

/** Returns the row of a host. If `refresh` is true, the next Job on the host fetches the newest image of the tag. */
export function withRefresh(row: NodeCacheState, refresh: boolean): NodeCacheState {
  return refresh ? { ...row, refresh } : row;
}

/** Returns the message with at most `length` characters. */
export function shortened(message: string, length: number): string {
  if (message.length <= length) {
    return message;
  }
  const beginning = message.slice(0, Math.min(BEGINNING_LENGTH, length / 2));
  return `${beginning}…${keepEnd(message, length - beginning.length - 1)}`;
}

/**
 * Returns the host's deadline in milliseconds since the epoch. The time limit starts when the operator first queues the host, and covers
 * all Jobs that fetch the image on this host.
 */
export function deadlineOf({ queuedAt = '' }: NodeCacheState, { config }: ObservedEntry): number {
  return Date.parse(queuedAt) + config.cache_job_active_deadline_seconds * 1000;
}

export function isLate(row: NodeCacheState, observed: ObservedEntry): boolean {
  return observed.now >= deadlineOf(row, observed);
}

/**
 * Returns the failure with the message for a host whose deadline is over, or unchanged if it is not over. If the failure itself only states
 * that the deadline is over, the message contains the host's last message instead.
 */
export function orOverdue(
  row: NodeCacheState,
  failure: AttemptFailure,
  observed: ObservedEntry,
): AttemptFailure {
  if (!isLate(row, observed)) {
    return failure;
  }
  const last = failure.message.startsWith(DEADLINE) ? row.message : failure.message;
  const seconds = observed.config.cache_job_active_deadline_seconds;
  const text = last === undefined ? '' : `: ${last}`;
  return { ...failure, message: `${DEADLINE}: image not fetched within ${seconds} s${text}` };
}
