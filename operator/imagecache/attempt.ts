/** How the last attempt on a host stands, and when the next one follows a failure. Pure. */
import { waitAfter } from '../../base/backoff.ts';
import { NODE_MESSAGE_LENGTH, type NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { keepEnd } from '../../api/v1alpha1/status.ts';
import type { OperatorConfig } from '../config/config.ts';
import { type CacheJob, iso, type Observed } from './observed.ts';

/** A registry that is away for a night is asked some ten times. */
const RETRY_CAP_MILLISECONDS = 3_600_000;
/** How much of the beginning of a message that is too long is kept: the reason stands there, the last words at the end. */
const BEGINNING_LENGTH = 60;

/** The reason of a host that is late; Jobs that are late have the same. */
export const DEADLINE = 'DeadlineExceeded';

export type Attempt =
  /** There is no Job, or one whose end is in the row already. */
  | { readonly kind: 'none' }
  | { readonly kind: 'underWay'; readonly job: CacheJob; readonly wakeAt: number | undefined }
  | { readonly kind: 'succeeded'; readonly at: number; readonly digest: string | undefined }
  | { readonly kind: 'failed'; readonly message: string }
  /** The Job was not scheduled in time. */
  | { readonly kind: 'full' };

/** How an attempt ended, for metrics. */
export type AttemptResult = 'succeeded' | 'failed' | 'unscheduled';

/** Names the attempt that a row asks for. A Job that was made for another attempt counts no more. */
export function attemptKey({ queuedAt = '', triedAt = '', failures = 0 }: NodeCacheState): string {
  return `${queuedAt} ${triedAt} ${failures}`;
}

export function attemptOf(
  job: CacheJob | undefined,
  row: NodeCacheState | undefined,
  { config, now }: Observed,
): Attempt {
  if (job === undefined || row === undefined || job.attempt !== attemptKey(row)) {
    return { kind: 'none' };
  }
  return progressOf(job, now, config.cacheTurnSeconds * 1000);
}

function progressOf(job: CacheJob, now: number, turnMilliseconds: number): Attempt {
  const { outcome, isScheduled, isParked, createdAt } = job;
  if (outcome.kind === 'failed') {
    const { reason, message } = outcome;
    return { kind: 'failed', message: message === '' ? reason : `${reason}: ${message}` };
  }
  if (outcome.kind === 'succeeded') {
    const at = Date.parse(outcome.finishedAt ?? '');
    return { kind: 'succeeded', at: Number.isNaN(at) ? createdAt : at, digest: outcome.report.digest };
  }
  const end = isScheduled || isParked ? undefined : createdAt + turnMilliseconds;
  return end !== undefined && now >= end ? { kind: 'full' } : { kind: 'underWay', job, wakeAt: end };
}

/** The row of a host whose work failed: tried again later, after longer and longer waits. */
export function failedRow(
  row: NodeCacheState,
  state: NodeCacheState['state'],
  message: string,
  { config, now }: { config: OperatorConfig; now: number },
): NodeCacheState {
  const failures = (row.failures ?? 0) + 1;
  const wait = waitAfter(failures, config.cacheRetrySeconds * 1000, RETRY_CAP_MILLISECONDS);
  return {
    node: row.node,
    state,
    message: shortened(message),
    failures,
    retryAt: iso(now + wait),
    ...(row.refresh === true && { refresh: true }),
  };
}

function shortened(message: string): string {
  if (message.length <= NODE_MESSAGE_LENGTH) {
    return message;
  }
  const beginning = message.slice(0, BEGINNING_LENGTH);
  return `${beginning}…${keepEnd(message, NODE_MESSAGE_LENGTH - BEGINNING_LENGTH - 1)}`;
}

/** When the host counts as failed, in milliseconds since the epoch: from when it was first queued, over all its Jobs. */
export function deadlineOf({ queuedAt = '' }: NodeCacheState, { config }: Observed): number {
  return Date.parse(queuedAt) + config.cache_job_active_deadline_seconds * 1000;
}

export function isLate(row: NodeCacheState, observed: Observed): boolean {
  return observed.now >= deadlineOf(row, observed);
}

/** The message of a late host, with the last words that are known: its Job and Pod may already have ended in ways of their own. */
export function overdue({ message }: NodeCacheState, why: string, { config }: Observed): string {
  const last = why.startsWith(DEADLINE) ? message : why;
  const seconds = config.cache_job_active_deadline_seconds;
  return `${DEADLINE}: not done within ${seconds} s${last === undefined ? '' : `: ${last}`}`;
}
