/** Plans all work for an ImageCacheEntry, and computes its whole status. All functions are pure. */
import { createHash } from 'node:crypto';
import { soonest, timestamp } from '../../base/time.ts';
import { targetTest } from '../../api/v1alpha1/cachetargets.ts';
import {
  type ImageCacheEntryStatus,
  NODE_MESSAGE_LENGTH,
  type NodeCacheState,
} from '../../api/v1alpha1/imagecacheentry.ts';
import {
  type Attempt,
  type AttemptFailure,
  attemptOf,
  type AttemptResult,
  DEADLINE,
  deadlineOf,
  failedRow,
  isLate,
  orOverdue,
  shortened,
  triedRow,
  underWayRow,
  withRefresh,
} from './attempt.ts';
import { digestsOn, knownDigests, newestDigest } from './image.ts';
import { type CacheJob, isCached, type ObservedEntry, type ObservedHost, type TaskType } from './observed.ts';
import { entryStatus } from './status.ts';

export interface Start {
  readonly type: TaskType;
  readonly host: string;
  readonly row: NodeCacheState;
  readonly isParked: boolean;
}

export interface EntryPlan {
  readonly status: ImageCacheEntryStatus;
  /** Jobs that have ended or are no longer wanted. They are deleted before new Jobs start. */
  readonly deletes: readonly CacheJob[];
  /** Jobs that have fetched the image. They are deleted when the status is stored. Otherwise their work would begin again after a crash. */
  readonly fetched: readonly CacheJob[];
  readonly starts: readonly Start[];
  /** Results of the Jobs in `deletes`, for metrics. */
  readonly ended: readonly NonNullable<HostPlan['ended']>[];
  /** Whether the entry is being deleted and no host keeps an image for it. */
  readonly isReleased: boolean;
  /** Time in milliseconds since the epoch when the entry must be reconciled again, even if nothing has changed. */
  readonly wakeAt: number | undefined;
}

/** Plans the work for an entry. `refusal` is the API server's message if it refused the last Job of the entry. */
export function planEntry(observed: ObservedEntry, refusal?: string): EntryPlan {
  const targets = targetsOf(observed);
  const digest = newestDigest(observed);
  const known = knownDigests(observed);
  const refreshBegins = isRefreshAsked(observed);
  const { nodes = [], holders: held = [] } = observed.entry.status ?? {};
  const stored = { rows: new Map(nodes.map((row) => [row.node, row])), holders: new Set(held) };
  const plans = hostsOf(observed, targets).map((node) => {
    const context = contextOf(observed, node, stored);
    const isTarget = targets.has(node);
    return 'host' in context
      ? { ...withRefusal(planHost({ ...context, isTarget, digest, known, refreshBegins }), refusal), node }
      : { ...context, node };
  });
  const fetched = plans.filter(hasFetched).flatMap((one) => one.deletes);
  const others = plans.filter((one) => !hasFetched(one));
  const holders = plans.filter(({ isHeld }) => isHeld).map(({ node }) => node);
  const rows = plans.map(({ row }) => row).filter((row) => row !== undefined);
  const deletes = others.flatMap((one) => one.deletes);
  return {
    status: entryStatus(observed, { targets, digest, known, rows, holders, refreshBegins }),
    deletes,
    fetched,
    starts: startsOf(observed, plans, deletes),
    ended: others.map(({ ended }) => ended).filter((ended) => ended !== undefined),
    isReleased: observed.entry.metadata.deletionTimestamp !== undefined && holders.length === 0,
    wakeAt: soonest(...plans.map(({ wakeAt }) => wakeAt)),
  };
}

function hasFetched({ ended }: HostPlan): boolean {
  return ended?.type === 'cache' && ended.result === 'succeeded';
}

const JOB_REFUSED = 'JobRefused: ';

/**
 * Returns the plan with the API server's message in the row of a host whose Job was refused. The Job is requested again nevertheless. If no
 * Job was refused, the message of an earlier refusal is removed.
 */
function withRefusal(plan: HostPlan, refusal: string | undefined): HostPlan {
  const { row, start } = plan;
  if (row !== undefined && refusal !== undefined && start !== undefined) {
    return { ...plan, row: { ...row, message: shortened(JOB_REFUSED + refusal, NODE_MESSAGE_LENGTH) } };
  }
  if (refusal === undefined && row?.message?.startsWith(JOB_REFUSED) === true) {
    const { message: _message, ...others } = row;
    return { ...plan, row: others };
  }
  return plan;
}

/** Returns the names of the hosts that should have the image. A duplicate and an entry that is being deleted have no such hosts. */
function targetsOf({ entry, duplicateOf, hosts }: ObservedEntry): ReadonlySet<string> {
  if (duplicateOf !== undefined || entry.metadata.deletionTimestamp !== undefined) {
    return new Set();
  }
  const usable = [...hosts.values()].filter(({ isUsable }) => isUsable);
  const wanted = usable.filter(targetTest(entry.spec.targets ?? {}));
  return new Set(wanted.map(({ name }) => name));
}

/** Parts of the entry's last status: the rows (states of single hosts) by host name, and the holders (hosts that might have the image). */
interface Stored {
  readonly rows: ReadonlyMap<string, NodeCacheState>;
  readonly holders: ReadonlySet<string>;
}

type Named = HostPlan & { readonly node: string };

/** Returns the names of all hosts to plan. The names are sorted, so that the status changes only if its content changes. */
function hostsOf({ entry: { status = {} }, jobs }: ObservedEntry, targets: ReadonlySet<string>): string[] {
  const rows = (status.nodes ?? []).map(({ node }) => node);
  const names = [...targets, ...(status.holders ?? []), ...rows, ...jobs.map(({ host }) => host)];
  return [...new Set(names)].toSorted();
}

/** Returns the context for the plan of a host. If the host's Node was deleted, the result is a plan that deletes the remaining Jobs. */
function contextOf(
  observed: ObservedEntry,
  node: string,
  { rows, holders }: Stored,
): Pick<HostContext, 'observed' | 'host' | 'row' | 'isHeld' | 'jobs'> | HostPlan {
  const jobs = observed.jobs.filter((job) => job.host === node);
  const host = observed.hosts.get(node);
  if (host === undefined) {
    return { row: undefined, isHeld: false, deletes: jobs };
  }
  // A host with a remaining cache Job counts as a holder, even if the entry's status does not contain the host. The status does not contain
  // the host if its Node was deleted and created again. The Job might already have put the image on the host.
  const isHeld = holders.has(node) || jobs.some(({ type }) => type === 'cache');
  return { observed, host, row: rows.get(node), isHeld, jobs };
}

/**
 * Returns true if a refresh is requested and has not begun. A reference with a digest needs no refresh, because only a tag can later name
 * another image.
 */
function isRefreshAsked({ entry: { spec, status }, image, duplicateOf }: ObservedEntry): boolean {
  return (
    spec.refreshRequestedAt !== undefined &&
    spec.refreshRequestedAt !== status?.lastRefresh &&
    duplicateOf === undefined &&
    isCached(image) &&
    image.digest === undefined
  );
}

/**
 * Returns the work to start, within the limit of Jobs for one entry. Hosts that have waited longest come first. Parked Jobs
 * wait for lost hosts and do not use the registry. Therefore they do not count towards the limit.
 */
function startsOf(observed: ObservedEntry, plans: readonly Named[], deletes: readonly CacheJob[]): Start[] {
  const { jobs, config } = observed;
  const remaining = jobs.filter((job) => !job.isParked && !deletes.includes(job)).length;
  const wishes = plans.flatMap(({ node, row, start }) =>
    start === undefined || row === undefined ? [] : [{ ...start, host: node, row }],
  );
  const parked = wishes.filter(({ isParked }) => isParked);
  const waiting = inOrder(
    observed,
    wishes.filter(({ isParked }) => !isParked),
  );
  return [...parked, ...waiting.slice(0, Math.max(0, config.cacheJobsPerEntry - remaining))];
}

function inOrder({ entry }: ObservedEntry, wishes: readonly Start[]): Start[] {
  const { uid = '' } = entry.metadata;
  const keyed = wishes.map((start) => {
    const since = start.row.triedAt ?? start.row.queuedAt ?? '';
    return { start, key: `${since} ${randomRank(uid, start.host)}` };
  });
  return keyed.toSorted((a, b) => (a.key < b.key ? -1 : 1)).map(({ start }) => start);
}

/**
 * Returns a rank for the order of hosts with equal waiting time. The order differs for each entry, because otherwise all entries would
 * begin with the same host.
 */
function randomRank(entryUid: string, host: string): string {
  return createHash('sha256').update(`${host}/${entryUid}`).digest('hex');
}

/** Longest time in milliseconds from the end of a Job until the host lists the image. An agent updates its list within seconds. */
const LISTED_MILLISECONDS = 60_000;
export interface HostContext {
  readonly observed: ObservedEntry;
  readonly host: ObservedHost;
  readonly isTarget: boolean;
  /** Row of the host: its state in the last status of the entry. */
  readonly row: NodeCacheState | undefined;
  /** Whether the host is a holder: a host that might have the image for the entry and must remove it later. */
  readonly isHeld: boolean;
  readonly jobs: readonly CacheJob[];
  /** Digest that the host should have. It is undefined if nobody knows the digest yet. */
  readonly digest: string | undefined;
  /** Digests by which the entry's image is known. */
  readonly known: ReadonlySet<string>;
  /** True if this is the first reconcile after somebody requested a newer image. */
  readonly refreshBegins: boolean;
}

interface HostPlan {
  /** Row of the host (its state) in the next status. It is undefined if the host has the image, or does not belong to the entry. */
  readonly row: NodeCacheState | undefined;
  readonly isHeld: boolean;
  readonly deletes: readonly CacheJob[];
  /** Job to create when the entry has fewer Jobs than its limit. A parked Job (for a lost host) is created at once. */
  readonly start?: { readonly type: TaskType; readonly isParked: boolean };
  readonly ended?: { readonly type: TaskType; readonly result: AttemptResult };
  /** Time in milliseconds since the epoch when the entry must be reconciled again, even if nothing has changed. */
  readonly wakeAt?: number | undefined;
}

/** Plan for a host without a Job for the current attempt. */
type PlanAtRest = Omit<HostPlan, 'deletes'>;

/** Plans the work for one host. If the host should have the image, the plan deletes Jobs that remove it, otherwise Jobs that fetch it. */
export function planHost(context: HostContext): HostPlan {
  const { isTarget } = context;
  const row = (context.row?.state === 'Removing') === isTarget ? undefined : context.row;
  const ours = context.jobs.filter(({ type }) => (type === 'cache') === isTarget);
  const others = context.jobs.filter((job) => !ours.includes(job));
  const planned = (isTarget ? planTarget : planLeaver)({ ...context, row, jobs: ours });
  return { ...planned, deletes: [...planned.deletes, ...others] };
}

function planTarget(context: HostContext): HostPlan {
  const { observed, isHeld, jobs, refreshBegins } = context;
  const row = context.row && withRefresh(context.row, refreshBegins);
  if (!isCached(observed.image)) {
    const isFinal = observed.image.reason === 'ImageSourceUnsupported';
    return { row: isFinal ? undefined : row, isHeld, deletes: isFinal ? jobs : [] };
  }
  const attempt = attemptOf(jobs[0], row, observed);
  return row === undefined || attempt.kind === 'none'
    ? { ...targetAtRest(context), deletes: jobs }
    : planAttempt(context, row, attempt);
}

function planAttempt(
  context: HostContext,
  row: NodeCacheState,
  attempt: Exclude<Attempt, { kind: 'none' }>,
): HostPlan {
  const hasReadTag = attempt.kind === 'underWay' || attempt.kind === 'succeeded';
  if (context.refreshBegins && hasReadTag) {
    // The Job might have read the tag before the request. Only a Job that begins later is sure to fetch the newest image.
    return { ...queued(context, true), deletes: context.jobs };
  }
  switch (attempt.kind) {
    case 'underWay':
      return cachingUnderWay(context, row, attempt);
    case 'failed':
      return cachingFailed(context, row, attempt);
    case 'unscheduled':
      return notScheduled(context, row, attempt.message);
    case 'succeeded':
    default:
      return cachingSucceeded(context, row, attempt);
  }
}

function notScheduled(context: HostContext, row: NodeCacheState, message: string): HostPlan {
  if (isLate(row, context.observed)) {
    return cachingFailed(context, row, { message });
  }
  const tried = triedRow({ ...row, state: 'Queued' }, message, context.observed);
  return { row: tried, isHeld: true, deletes: context.jobs, ended: { type: 'cache', result: 'unscheduled' } };
}

function cachingUnderWay(
  context: HostContext,
  row: NodeCacheState,
  { job, wakeAt }: Attempt & { kind: 'underWay' },
): HostPlan {
  if (isLate(row, context.observed)) {
    return cachingFailed(context, row, { message: DEADLINE });
  }
  const state = job.isScheduled ? 'Caching' : 'Queued';
  const end = deadlineOf(row, context.observed);
  const shown = { ...underWayRow(row, job), state } as const;
  return { row: shown, isHeld: true, deletes: [], wakeAt: Math.min(wakeAt ?? end, end) };
}

/** Plans the work for a host whose Job has fetched the image. The Job's report is not enough: the host must also list the image. */
function cachingSucceeded(
  context: HostContext,
  row: NodeCacheState,
  { at, digest }: Attempt & { kind: 'succeeded' },
): HostPlan {
  const listed = listedDigests(context);
  if (listed !== undefined && (digest === undefined || isBrought(context, digest))) {
    const ended = { type: 'cache', result: 'succeeded' } as const;
    return { row: outdated(context), isHeld: true, deletes: context.jobs, ended };
  }
  const end = at + LISTED_MILLISECONDS;
  return context.observed.now < end
    ? { row: { ...row, state: 'Caching' }, isHeld: true, deletes: [], wakeAt: end }
    : cachingFailed(context, row, { message: 'The Job succeeded, but the host does not list the image' });
}

/** Returns true if the host lists the image that its Job has fetched. For a tag, it is the image with the digest that the Job reported. */
function isBrought({ observed: { image }, host }: HostContext, digest: string): boolean {
  const isTag = isCached(image) && image.digest === undefined;
  return !isTag || host.images.some((digests) => digests.includes(digest));
}

/**
 * Plans the work for a host that should have the image and has no Job. An image that the host lists counts only if a Job of this entry has
 * fetched it. Another namespace might have brought the image, and then the host neither keeps it for this entry, nor knows that the
 * namespace of this entry may use it. The Job of this entry ends at once if the host has the image.
 */
function targetAtRest(context: HostContext): PlanAtRest {
  const { row, isHeld, refreshBegins } = context;
  const refresh = refreshBegins || row?.refresh === true;
  if (!refresh && wasFetched(context)) {
    return { row: outdated(context), isHeld };
  }
  if (row?.retryAt !== undefined) {
    return cachingAgain(context, row, refresh);
  }
  return row?.queuedAt === undefined ? queued(context, refresh) : waiting(context, row, refresh);
}

/** Returns whether a Job of this entry has fetched the image that the host lists. */
function wasFetched(context: HostContext): boolean {
  const { isHeld, row } = context;
  return isHeld && (row === undefined || row.state === 'Outdated') && listedDigests(context) !== undefined;
}

function cachingAgain(context: HostContext, row: NodeCacheState, refresh: boolean): PlanAtRest {
  const wakeAt = Date.parse(row.retryAt ?? '');
  if (context.observed.now < wakeAt) {
    return { row: withRefresh(row, refresh), isHeld: true, wakeAt };
  }
  // If the host is not Ready, the plan contains no time for the next reconcile. The change of the Node to Ready triggers the reconcile.
  return context.host.notReadySince === undefined
    ? queued(context, refresh)
    : { row: withRefresh(row, refresh), isHeld: true };
}

/** Queues the host. The status then lists the host, so a restarted operator knows that this host must remove the image later. */
function queued({ host, row, observed, isTarget }: HostContext, refresh: boolean): PlanAtRest {
  const { failures } = row ?? {};
  const fresh: NodeCacheState = {
    node: host.name,
    state: isTarget ? 'Queued' : 'Removing',
    queuedAt: timestamp(observed.now),
    ...(failures !== undefined && { failures }),
  };
  return { row: withRefresh(fresh, refresh), isHeld: true, wakeAt: observed.now };
}

function waiting(context: HostContext, row: NodeCacheState, refresh: boolean): PlanAtRest {
  if (isLate(row, context.observed)) {
    return cachingFailed(context, row, { message: DEADLINE });
  }
  const why = obstacle(context) ?? fullness(context);
  const { message = why, ...rest } = row;
  const shown: NodeCacheState = { ...rest, state: 'Queued', ...(message !== undefined && { message }) };
  return {
    row: withRefresh(why === undefined ? shown : { ...shown, message: why }, refresh),
    isHeld: true,
    wakeAt: deadlineOf(row, context.observed),
    ...(why === undefined && { start: { type: 'cache', isParked: false } as const }),
  };
}

/** Returns the reason, if any, why no work can begin on the host. A cordoned host can remove an image, but cannot fetch one. */
function obstacle({ host, observed, isTarget }: HostContext): string | undefined {
  if (host.notReadySince !== undefined) {
    return 'The host is not Ready';
  }
  if (host.isCordoned && isTarget) {
    return 'The host is cordoned';
  }
  return observed.lingering.has(host.name) ? 'The Pod of an earlier Job is still ending' : undefined;
}

/** Returns a message if the host has no free slot. A Job would then only wait. The entry is reconciled again when a slot is free. */
function fullness({ host, observed }: HostContext): string | undefined {
  return observed.freeSlots(host.name) > 0 ? undefined : 'HostFull: the host has no free slot';
}

function cachingFailed(
  { observed, jobs }: HostContext,
  row: NodeCacheState,
  failure: AttemptFailure,
): HostPlan {
  const next = failedRow(row, 'Failed', orOverdue(row, failure, observed), observed);
  const ended = { type: 'cache', result: 'failed' } as const;
  return { row: next, isHeld: true, deletes: jobs, ended, wakeAt: Date.parse(next.retryAt ?? '') };
}

function listedDigests({ known, host, digest }: HostContext): readonly string[] | undefined {
  return digestsOn(host, known, digest);
}

/** Returns the row of a host whose image is outdated. The result is undefined if the host has the newest known image. */
function outdated(context: HostContext): NodeCacheState | undefined {
  const { host, digest } = context;
  const here = listedDigests(context) ?? [];
  return digest === undefined || here.length === 0 || here.includes(digest)
    ? undefined
    : { node: host.name, state: 'Outdated', message: `The host has the outdated image ${here[0]}` };
}

function planLeaver(context: HostContext): HostPlan {
  const { row, observed, isHeld, jobs } = context;
  if (!isHeld) {
    const over = jobs.filter(({ outcome }) => outcome.kind === 'succeeded' || outcome.kind === 'failed');
    return { row: undefined, isHeld: false, deletes: over };
  }
  if (row === undefined) {
    return { ...queued(context, false), deletes: jobs };
  }
  const attempt = attemptOf(jobs[0], row, observed);
  const ended = (result: AttemptResult) => ({ deletes: jobs, ended: { type: 'uncache', result } }) as const;
  switch (attempt.kind) {
    case 'underWay':
      return uncachingUnderWay(context, row, attempt);
    case 'succeeded':
      return { row: undefined, isHeld: false, ...ended('succeeded') };
    case 'failed': {
      const next = failedRow(row, 'Removing', attempt, observed);
      return { row: next, isHeld: true, ...ended('failed'), wakeAt: Date.parse(next.retryAt ?? '') };
    }
    case 'unscheduled':
      return { row: triedRow(row, attempt.message, observed), isHeld: true, ...ended('unscheduled') };
    case 'none':
    default:
      return { ...leaverAtRest(context, row), deletes: jobs };
  }
}

function uncachingUnderWay(
  context: HostContext,
  row: NodeCacheState,
  { job, wakeAt }: Attempt & { kind: 'underWay' },
): HostPlan {
  return job.isParked && isLost(context)
    ? { row: undefined, isHeld: false, deletes: [] }
    : { row: underWayRow(row, job), isHeld: true, deletes: [], wakeAt };
}

function leaverAtRest(context: HostContext, row: NodeCacheState): PlanAtRest {
  if (row.retryAt !== undefined) {
    const wakeAt = Date.parse(row.retryAt);
    return context.observed.now < wakeAt ? { row, isHeld: true, wakeAt } : queued(context, false);
  }
  const why = obstacle(context);
  if (why === undefined) {
    // There is no obstacle any more, so a message about an obstacle is removed. The message of a failed attempt stays.
    const { message: _message, ...rest } = row;
    const shown = row.triedAt === undefined ? rest : row;
    return { row: shown, isHeld: true, start: { type: 'uncache', isParked: false } };
  }
  const reported = { ...row, message: why };
  return isLost(context)
    ? { row: reported, isHeld: true, start: { type: 'uncache', isParked: true } }
    : { row: reported, isHeld: true, wakeAt: lostAt(context) };
}

/**
 * Returns true if the deletion of the entry need not wait for the host any longer, because the host was not Ready for
 * `hostLostTimeoutSeconds`. A parked Job remains, and removes the image if the host returns.
 */
function isLost(context: HostContext): boolean {
  return context.observed.now >= (lostAt(context) ?? Infinity);
}

function lostAt({ host, observed }: HostContext): number | undefined {
  const { entry, config } = observed;
  return entry.metadata.deletionTimestamp === undefined || host.notReadySince === undefined
    ? undefined
    : host.notReadySince + config.hostLostTimeoutSeconds * 1000;
}
