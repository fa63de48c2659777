/** Plans all work for an ImageCacheEntry, and computes its whole status. All functions are pure. */
import { createHash } from 'node:crypto';
import { soonest } from '../../base/time.ts';
import { targetTest } from '../../api/v1alpha1/cachetargets.ts';
import {
  type ImageCacheEntryStatus,
  NODE_MESSAGE_LENGTH,
  type NodeCacheState,
} from '../../api/v1alpha1/imagecacheentry.ts';
import { shortened } from './attempt.ts';
import { type HostContext, type HostPlan, planHost } from './hostplan.ts';
import { knownDigests, newestDigest } from './image.ts';
import { type CacheJob, isCached, type ObservedEntry, type TaskType } from './observed.ts';
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
