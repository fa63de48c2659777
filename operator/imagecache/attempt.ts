/** How the Job of a host stands, and what a failure means for its next turn. */
import { waitAfter } from '../../base/backoff.ts';
import { NODE_MESSAGE_LENGTH, type NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { keepEnd } from '../../api/v1alpha1/status.ts';
import type { OperatorConfig } from '../config/config.ts';
import { type CacheJob, iso, type Observed } from './observed.ts';

/** A registry that is away for a night is asked some ten times. */
const RETRY_CAP_MILLISECONDS = 3_600_000;
/** Of a message that is too long, what it begins with: the reason is there, and the last words in the end. */
const BEGINNING_LENGTH = 60;

export type Verdict =
  /** There is no Job, or one that has been reckoned with already. */
  | { readonly kind: 'none' }
  | { readonly kind: 'underWay'; readonly job: CacheJob; readonly wakeAt: number | undefined }
  | { readonly kind: 'succeeded'; readonly at: number; readonly digest: string | undefined }
  | { readonly kind: 'failed'; readonly message: string }
  /** It was not scheduled while it was its host's turn. */
  | { readonly kind: 'full' };

/** What ended with this look, for metrics. */
export type Result = 'succeeded' | 'failed' | 'unscheduled';

/** The state of a host's queue: a Job made in another one is of the past. */
export function turnOf({ queuedAt = '', triedAt = '', failures = 0 }: NodeCacheState): string {
  return `${queuedAt} ${triedAt} ${failures}`;
}

export function judge(
  job: CacheJob | undefined,
  row: NodeCacheState | undefined,
  { config, now }: Observed,
): Verdict {
  if (job === undefined || row === undefined || job.turn !== turnOf(row)) {
    return { kind: 'none' };
  }
  return verdictOf(job, now, config.cacheTurnSeconds * 1000);
}

function verdictOf(job: CacheJob, now: number, turnMilliseconds: number): Verdict {
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
