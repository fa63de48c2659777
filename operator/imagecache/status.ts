/** Computes the whole status of an ImageCacheEntry. */
import { timestamp } from '../../base/time.ts';
import {
  FORMER_DIGESTS,
  type ImageCacheEntryStatus,
  imageCacheEntryStatusSchema,
  type NodeCacheState,
} from '../../api/v1alpha1/imagecacheentry.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import { type ConditionDraft, stampConditions } from '../objects/conditions.ts';
import { equal } from '../../kube/mergepatch.ts';
import { shortened } from './attempt.ts';
import { isCached, type ObservedEntry } from './observed.ts';

export interface EntryFindings {
  readonly targets: ReadonlySet<string>;
  readonly digest: string | undefined;
  readonly known: ReadonlySet<string>;
  /** Rows for the entry's status. A row states that a host still has work for the entry, failed, or has an outdated image. */
  readonly rows: readonly NodeCacheState[];
  readonly holders: readonly string[];
  readonly refreshBegins: boolean;
}

/** Largest number of failing hosts in the column of `kubectl get`. A few names are enough to begin an investigation. */
const FAILING_NAMED = 5;

/**
 * Largest length of the messages of all hosts together, in characters. Without this limit, the failures of a few thousand hosts would
 * exceed etcd's limit of 1.5 MB for an object. The API server would then refuse every status of the entry, and all work for the entry would
 * stop.
 */
const MESSAGES_LENGTH = 192 * 1024;

export function entryStatus(observed: ObservedEntry, findings: EntryFindings): ImageCacheEntryStatus {
  const { entry, reference } = observed;
  const { targets, rows, holders, digest } = findings;
  const failed = rows.filter(({ state }) => state === 'Failed');
  const missing = rows.filter(({ node }) => targets.has(node)).length;
  return boundStatus(imageCacheEntryStatusSchema, {
    observedGeneration: entry.metadata.generation ?? 0,
    normalizedReference: reference,
    digest,
    formerDigests: formerDigests(findings),
    lastRefresh: lastRefresh(observed, findings),
    desired: targets.size,
    cached: isCached(observed.image) ? targets.size - missing : (entry.status?.cached ?? 0),
    failed: failed.length,
    outdated: rows.filter(({ state }) => state === 'Outdated').length,
    nodes: rows.length === 0 ? undefined : withShortMessages(rows),
    failing: failed.length === 0 ? undefined : names(failed),
    holders: holders.length === 0 ? undefined : [...holders],
    conditions: stampConditions(conditions(observed, findings), entry.status?.conditions, {
      now: timestamp(observed.now),
      generation: entry.metadata.generation ?? 0,
    }),
  });
}

/** Returns the digests by which the image is known, except the present one. New ones come first, because the list has a limit. */
function formerDigests({ digest, known }: EntryFindings): string[] | undefined {
  const former = [...known].filter((one) => one !== digest).slice(0, FORMER_DIGESTS);
  return former.length === 0 ? undefined : former;
}

/**
 * Returns the last value of `refreshRequestedAt` for which the operator started a refresh. If the image's name contains a digest, no newer
 * image can exist. In this case there is nothing to refresh, and the operator records the value immediately.
 */
function lastRefresh({ entry, image }: ObservedEntry, { refreshBegins }: EntryFindings): string | undefined {
  const { spec, status } = entry;
  const isNothing = isCached(image) && image.digest !== undefined;
  return refreshBegins || isNothing ? (spec.refreshRequestedAt ?? status?.lastRefresh) : status?.lastRefresh;
}

/** Returns all rows. Their messages are shortened, so that together they have at most {@link MESSAGES_LENGTH} characters. */
function withShortMessages(rows: readonly NodeCacheState[]): NodeCacheState[] {
  const length = Math.floor(MESSAGES_LENGTH / rows.length);
  return rows.map((row) =>
    row.message === undefined ? row : { ...row, message: shortened(row.message, length) },
  );
}

function names(failed: readonly NodeCacheState[]): string {
  const shown = failed.slice(0, FAILING_NAMED).map(({ node }) => node);
  const more = failed.length - shown.length;
  return `${shown.join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
}

function conditions(observed: ObservedEntry, findings: EntryFindings): ConditionDraft[] {
  const isBusy = findings.rows.some(({ state }) => state !== 'Failed' && state !== 'Outdated');
  const readyDraft = ready(observed, findings);
  const { reason, message } = readyDraft;
  return [
    readyDraft,
    accepted(observed),
    ...(isBusy
      ? [{ type: 'Reconciling', status: 'True', reason: reasonOf(findings), message } as const]
      : []),
    ...(observed.duplicateOf === undefined
      ? []
      : [{ type: 'Stalled', status: 'True', reason, message } as const]),
  ];
}

function accepted({ duplicateOf, reference }: ObservedEntry): ConditionDraft {
  const type = 'Accepted';
  return duplicateOf === undefined
    ? { type, status: 'True', reason: 'Accepted', message: '' }
    : {
        type,
        status: 'False',
        reason: 'DuplicateOf',
        message: `Entry ${duplicateOf} already requests the image ${reference}. This entry has no effect until entry ${duplicateOf} is deleted`,
      };
}

function reasonOf({ rows }: EntryFindings): Reason {
  return rows.every(({ state }) => state === 'Removing') ? 'Removing' : 'Caching';
}

function ready({ entry, image, duplicateOf }: ObservedEntry, findings: EntryFindings): ConditionDraft {
  const no = (reason: Reason, message: string) =>
    ({ type: 'Ready', status: 'False', reason, message }) as const;
  if (entry.metadata.deletionTimestamp !== undefined) {
    return no('Removing', 'Hosts are removing the image that they keep for this entry');
  }
  if (duplicateOf !== undefined) {
    return no('DuplicateOf', `Entry ${duplicateOf} already requests the same image`);
  }
  return isCached(image) ? readiness(findings, no) : no(image.reason, image.message);
}

function readiness(
  { targets, rows }: EntryFindings,
  no: (reason: Reason, message: string) => ConditionDraft,
): ConditionDraft {
  const wanted = rows.filter(({ node }) => targets.has(node));
  const failed = wanted.filter(({ state }) => state === 'Failed');
  const [first] = failed;
  const count = `${targets.size - wanted.length} of ${targets.size} hosts have the image`;
  if (first !== undefined) {
    return no(
      'CacheFailed',
      `${count}. Fetching failed on ${names(failed)}. Host ${first.node}: ${first.message ?? ''}`,
    );
  }
  const outdated = wanted.filter(({ state }) => state === 'Outdated');
  if (outdated.length === wanted.length && outdated.length > 0) {
    return no(
      'Outdated',
      `${count}. ${outdated.length} of ${targets.size} have an older image. Set spec.refreshRequestedAt to fetch the newer image`,
    );
  }
  if (wanted.length > 0) {
    return no('Caching', count);
  }
  return { type: 'Ready', status: 'True', reason: targets.size === 0 ? 'NoHosts' : 'Cached', message: count };
}

/**
 * Returns true if a status has new facts. A restarted operator needs the facts, so they must be stored before any work begins. The operator
 * can compute all other fields again, so their changes can be stored later.
 */
export function entryBringsFacts(
  last: ImageCacheEntryStatus | undefined,
  next: ImageCacheEntryStatus,
): boolean {
  const known = last?.nodes ?? [];
  const rows = next.nodes ?? [];
  const factsByNode = (list: readonly NodeCacheState[]) =>
    new Map(list.map((row) => [row.node, factsOf(row)]));
  const before = factsByNode(known);
  const after = factsByNode(rows);
  return (
    !equal(ownFacts(last), ownFacts(next)) ||
    rows.some(({ node }) => !equal(before.get(node), after.get(node))) ||
    // When a host has finished its check for a newer image, its row disappears. This change must be stored at once, because the Node shows
    // only the host's images, not the end of the check.
    known.some(({ node, refresh }) => refresh === true && !after.has(node))
  );
}

function ownFacts(status: ImageCacheEntryStatus = {}): object {
  const { holders, digest, formerDigests, lastRefresh, observedGeneration } = status;
  return { holders, digest, formerDigests, lastRefresh, observedGeneration };
}

/**
 * Returns the facts of a row: the fields that a restarted operator needs. A row is the state of one host. If the host only has an outdated
 * image, its row has no facts.
 */
function factsOf({ queuedAt, triedAt, failures, retryAt, refresh, state }: NodeCacheState): object {
  return { queuedAt, triedAt, failures, retryAt, refresh, isRemoved: state === 'Removing' };
}
