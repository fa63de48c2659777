/** A host that should have the image. */
import type { NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { type Decision, type HostContext, obstacle } from './decision.ts';
import { type CacheJob, isCached, iso } from './observed.ts';
import { digestsIn, namesOn } from './presence.ts';
import { failedRow, judge, type Verdict } from './attempt.ts';

/** An agent writes its list of images within seconds of a change. */
const LISTED_MILLISECONDS = 60_000;
/** As Jobs have it. */
const DEADLINE = 'DeadlineExceeded';

export function keep(context: HostContext): Decision {
  const { observed, jobs, isHeld } = context;
  const row = context.row?.state === 'Removing' ? undefined : context.row;
  // It had left the targets, and is back.
  const leaving = jobs.filter(({ type }) => type === 'uncache');
  if (!isCached(observed.image)) {
    return { row, isHeld, deletes: leaving };
  }
  const job = jobs.find(({ type }) => type === 'cache');
  const decision = step({ ...context, row }, judge(job, row, observed), job);
  return { ...decision, deletes: [...decision.deletes, ...leaving] };
}

function step(context: HostContext, verdict: Verdict, job: CacheJob | undefined): Decision {
  const { row } = context;
  const jobs = job === undefined ? [] : [job];
  if (row === undefined || verdict.kind === 'none') {
    return { ...atRest(context), deletes: jobs };
  }
  switch (verdict.kind) {
    case 'underWay':
      return underWay(context, row, verdict);
    case 'failed':
      return failed(context, row, verdict.message, jobs);
    case 'full':
      return full(context, row, jobs);
    case 'succeeded':
    default:
      return succeeded(context, row, verdict, jobs);
  }
}

function full(context: HostContext, row: NodeCacheState, jobs: CacheJob[]): Decision {
  const { now, config } = context.observed;
  const message = `HostFull: its job was not scheduled within ${config.cacheTurnSeconds} s`;
  if (isLate(context, row)) {
    return failed(context, row, message, jobs);
  }
  const tried: NodeCacheState = { ...row, state: 'Queued', triedAt: iso(now), message };
  return { row: tried, isHeld: true, deletes: jobs, ended: { type: 'cache', result: 'unscheduled' } };
}

function underWay(
  context: HostContext,
  row: NodeCacheState,
  { job, wakeAt }: Verdict & { kind: 'underWay' },
): Decision {
  if (isLate(context, row)) {
    return failed(context, row, DEADLINE, [job]);
  }
  const { message: _message, ...rest } = row;
  const shown: NodeCacheState = job.isScheduled ? { ...rest, state: 'Caching' } : { ...row, state: 'Queued' };
  const end = deadlineOf(context, row);
  return { row: shown, isHeld: true, deletes: [], wakeAt: Math.min(wakeAt ?? end, end) };
}

/** The job's word is not enough: what counts is what the host lists. */
function succeeded(
  context: HostContext,
  row: NodeCacheState,
  { at, digest }: Verdict & { kind: 'succeeded' },
  jobs: CacheJob[],
): Decision {
  const listed = names(context);
  if (listed !== undefined && isBrought(context, listed, digest)) {
    const ended = { type: 'cache', result: 'succeeded' } as const;
    return { row: outdated(context), isHeld: true, deletes: jobs, ended };
  }
  const end = at + LISTED_MILLISECONDS;
  return context.observed.now < end
    ? { row: { ...row, state: 'Caching' }, isHeld: true, deletes: [], wakeAt: end }
    : failed(context, row, 'the job succeeded, but the host does not list the image', jobs);
}

/** Of a tag, what the job resolved it to, and not what was there before. */
function isBrought(
  { observed: { image } }: HostContext,
  listed: readonly string[],
  digest?: string,
): boolean {
  const isTag = isCached(image) && image.digest === undefined;
  return !isTag || digest === undefined || digestsIn(listed).includes(digest);
}

/** No Job is under way. */
function atRest(context: HostContext): Omit<Decision, 'deletes'> {
  const { row, isHeld, refreshBegins } = context;
  const refresh = refreshBegins || row?.refresh === true;
  if (names(context) !== undefined && !refresh) {
    return { row: outdated(context), isHeld };
  }
  if (row?.retryAt !== undefined) {
    return retrying(context, row, refresh);
  }
  return row?.queuedAt === undefined ? queued(context, refresh) : waiting(context, row, refresh);
}

function retrying(context: HostContext, row: NodeCacheState, refresh: boolean): Omit<Decision, 'deletes'> {
  const wakeAt = Date.parse(row.retryAt ?? '');
  if (context.observed.now < wakeAt) {
    return { row: withRefresh(row, refresh), isHeld: true, wakeAt };
  }
  // The Node of a host tells when it is Ready again.
  return context.host.notReadySince === undefined
    ? queued(context, refresh)
    : { row: withRefresh(row, refresh), isHeld: true };
}

/** From here on it counts as held: whatever happens to the operator next, the host will be cleaned. */
function queued({ host, row, observed }: HostContext, refresh: boolean): Omit<Decision, 'deletes'> {
  const { failures } = row ?? {};
  const fresh: NodeCacheState = {
    node: host.name,
    state: 'Queued',
    queuedAt: iso(observed.now),
    ...(failures !== undefined && { failures }),
  };
  return { row: withRefresh(fresh, refresh), isHeld: true, wakeAt: observed.now };
}

function waiting(context: HostContext, row: NodeCacheState, refresh: boolean): Omit<Decision, 'deletes'> {
  if (isLate(context, row)) {
    return failed(context, row, DEADLINE, []);
  }
  const why = obstacle(context) ?? fullness(context);
  const { message = why, ...rest } = row;
  const shown: NodeCacheState = { ...rest, state: 'Queued', ...(message !== undefined && { message }) };
  return {
    row: withRefresh(why === undefined ? shown : { ...shown, message: why }, refresh),
    isHeld: true,
    wakeAt: deadlineOf(context, row),
    ...(why === undefined && { start: { type: 'cache', isParked: false } as const }),
  };
}

/** A Job would only wait for a place, and be deleted and made again. When one is free, the entry is looked at. */
function fullness({ host, observed }: HostContext): string | undefined {
  return observed.freeSlots(host.name) > 0 ? undefined : 'HostFull: no place of the host is free';
}

function failed(context: HostContext, row: NodeCacheState, why: string, deletes: CacheJob[]): Decision {
  const message = isLate(context, row) ? overdue(context, row, why) : why;
  const next = failedRow(row, 'Failed', message, context.observed);
  const ended = { type: 'cache', result: 'failed' } as const;
  return { row: next, isHeld: true, deletes, ended, wakeAt: Date.parse(next.retryAt ?? '') };
}

function deadlineOf({ observed }: HostContext, { queuedAt = '' }: NodeCacheState): number {
  return Date.parse(queuedAt) + observed.config.cache_job_active_deadline_seconds * 1000;
}

function isLate(context: HostContext, row: NodeCacheState): boolean {
  return context.observed.now >= deadlineOf(context, row);
}

/** With the last that is known of it: its Job and Pod may already have ended in ways of their own. */
function overdue({ observed }: HostContext, { message }: NodeCacheState, why: string): string {
  const seconds = observed.config.cache_job_active_deadline_seconds;
  const last = why.startsWith(DEADLINE) ? message : why;
  return `${DEADLINE}: not done within ${seconds} s${last === undefined ? '' : `: ${last}`}`;
}

function withRefresh(row: NodeCacheState, refresh: boolean): NodeCacheState {
  return refresh ? { ...row, refresh } : row;
}

function names({ observed, host }: HostContext): readonly string[] | undefined {
  return isCached(observed.image) ? namesOn(observed.image, host) : undefined;
}

/** Undefined when the host has the newest image that is known of. */
function outdated(context: HostContext): NodeCacheState | undefined {
  const { host, digest } = context;
  const here = digestsIn(names(context) ?? []);
  return digest === undefined || here.length === 0 || here.includes(digest)
    ? undefined
    : { node: host.name, state: 'Outdated', message: `has ${here[0]}` };
}
