/** All that is to be done about an ImageCacheEntry, and its whole status. Pure. */
import { soonest } from '../../base/time.ts';
import type { ImageCacheEntryStatus, NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import type { Decision, HostContext } from './decision.ts';
import { keep } from './hostplan.ts';
import { leave } from './leave.ts';
import { lot, type TaskType } from './names.ts';
import { type CacheJob, isCached, type Observed } from './observed.ts';
import { newestDigest } from './presence.ts';
import { summarize } from './status.ts';
import { targetsOf } from './targets.ts';

export interface Start {
  readonly type: TaskType;
  readonly host: string;
  readonly row: NodeCacheState;
  readonly isParked: boolean;
}

export interface Plan {
  readonly status: ImageCacheEntryStatus;
  /** Of Jobs that have ended, or are not wanted any more; then what may begin in their place. */
  readonly deletes: readonly CacheJob[];
  readonly starts: readonly Start[];
  readonly ended: readonly NonNullable<Decision['ended']>[];
  /** The entry is being deleted, and no host keeps anything for it. */
  readonly isReleased: boolean;
  /** When to look again, in milliseconds since the epoch. */
  readonly wakeAt: number | undefined;
}

export function plan(observed: Observed): Plan {
  const targets = targetsOf(observed);
  const digest = newestDigest(observed);
  const refreshBegins = isRefreshAsked(observed);
  const { nodes = [], holders: held = [] } = observed.entry.status ?? {};
  const stored = { rows: new Map(nodes.map((row) => [row.node, row])), holders: new Set(held) };
  const decisions = hostsOf(observed, targets).map((name) => {
    const context = contextOf(observed, name, { digest, refreshBegins }, stored);
    return 'host' in context ? decide(context, targets) : context;
  });
  const deletes = decisions.flatMap((decision) => decision.deletes);
  const holders = decisions.filter(({ isHeld }) => isHeld).map(({ node }) => node);
  const rows = decisions.map(({ row }) => row).filter((row) => row !== undefined);
  return {
    status: summarize(observed, { targets, digest, rows, holders, refreshBegins }),
    deletes,
    starts: startsOf(observed, decisions, deletes),
    ended: decisions.map(({ ended }) => ended).filter((ended) => ended !== undefined),
    isReleased: observed.entry.metadata.deletionTimestamp !== undefined && holders.length === 0,
    wakeAt: soonest(...decisions.map(({ wakeAt }) => wakeAt)),
  };
}

/** The entry's status, by host. */
interface Stored {
  readonly rows: ReadonlyMap<string, NodeCacheState>;
  readonly holders: ReadonlySet<string>;
}

type Named = Decision & { readonly node: string };

function decide(context: HostContext, targets: ReadonlySet<string>): Named {
  const { name } = context.host;
  return { ...(targets.has(name) ? keep(context) : leave(context)), node: name };
}

/** In the order of their names, so that what has not changed reads the same. */
function hostsOf({ entry: { status = {} }, jobs }: Observed, targets: ReadonlySet<string>): string[] {
  const rows = (status.nodes ?? []).map(({ node }) => node);
  const names = [...targets, ...(status.holders ?? []), ...rows, ...jobs.map(({ host }) => host)];
  return [...new Set(names)].toSorted();
}

/** A host whose Node is gone needs nothing, and nothing of it is left but Jobs. */
function contextOf(
  observed: Observed,
  name: string,
  common: Pick<HostContext, 'digest' | 'refreshBegins'>,
  { rows, holders }: Stored,
): HostContext | Named {
  const jobs = observed.jobs.filter((job) => job.host === name);
  const host = observed.hosts.get(name);
  if (host === undefined) {
    return { node: name, row: undefined, isHeld: false, deletes: jobs };
  }
  return {
    ...common,
    observed,
    host,
    row: rows.get(name),
    // A Job that nobody remembers, for the Node was away meanwhile, may have put the image there all the same.
    isHeld: holders.has(name) || jobs.some(({ type }) => type === 'cache'),
    jobs,
  };
}

/** Only a tag can have moved. */
function isRefreshAsked({ entry: { spec, status }, image, duplicateOf }: Observed): boolean {
  return (
    spec.refreshRequestedAt !== undefined &&
    spec.refreshRequestedAt !== status?.lastRefresh &&
    duplicateOf === undefined &&
    isCached(image) &&
    image.digest === undefined
  );
}

/**
 * As many as the limit leaves: those that have waited longest first. Jobs that wait for lost hosts ask nothing of a registry and
 * are not counted.
 */
function startsOf(observed: Observed, decisions: readonly Named[], deletes: readonly CacheJob[]): Start[] {
  const { jobs, config } = observed;
  const remaining = jobs.filter((job) => !job.isParked && !deletes.includes(job)).length;
  const wishes = decisions.flatMap(({ node, row, start }) =>
    start === undefined || row === undefined ? [] : [{ ...start, host: node, row }],
  );
  const parked = wishes.filter(({ isParked }) => isParked);
  const waiting = inOrder(
    observed,
    wishes.filter(({ isParked }) => !isParked),
  );
  return [...parked, ...waiting.slice(0, Math.max(0, config.cacheJobsPerEntry - remaining))];
}

function inOrder({ entry }: Observed, wishes: readonly Start[]): Start[] {
  const { uid = '' } = entry.metadata;
  const keyed = wishes.map((start) => {
    const since = start.row.triedAt ?? start.row.queuedAt ?? '';
    return { start, key: `${since} ${lot(uid, start.host)}` };
  });
  return keyed.toSorted((a, b) => (a.key < b.key ? -1 : 1)).map(({ start }) => start);
}
