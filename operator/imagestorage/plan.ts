/** Plans which removals begin, and finds those that have ended. All functions are pure. */
import type { Job } from '../../kube/core.ts';
import type { Place } from '../image/place.ts';
import { isNeeded, type Needs } from './needs.ts';

/**
 * Longest time in milliseconds between two checks whether something needs content that is to be removed. The operator does not notice a
 * need that exists only between two checks.
 */
const LOOK_MILLISECONDS = 60_000;

/**
 * Largest number of removals that run at the same time. Without this limit, a deleted namespace with a thousand images would fill the hosts
 * with Pods.
 */
const REMOVALS_LIMIT = 20;

/** Result of an ended removal. `kept` is the reason why the content is still stored. It is undefined if the content was removed. */
export interface RemovalEnd {
  readonly kept: string | undefined;
}

export interface Removal {
  readonly job: Job;
  readonly place: Place;
  readonly end: RemovalEnd | undefined;
}

export interface ObservedRemovals {
  readonly removals: readonly Removal[];
  readonly needs: Needs;
  /**
   * For each removal, the time of the first check that found the content unneeded, in milliseconds since the epoch. The map's key is the
   * `uid` of the removal's Job.
   */
  readonly unneededSince: ReadonlyMap<string, number>;
  /**
   * Time in milliseconds for which content must be unneeded before it is removed. When the last image with this content goes away, somebody
   * might just be creating a copy or VM that needs the content. The caches might not show this object yet. When the time is over, they show
   * it, or its creation has failed.
   */
  readonly keepMilliseconds: number;
  readonly now: number;
}

export interface RemovalPlan {
  readonly unneededSince: ReadonlyMap<string, number>;
  /** Removals that begin next, unless the API server shows that something needs the content. */
  readonly due: readonly Removal[];
  readonly ended: readonly (Removal & { readonly end: RemovalEnd })[];
  /** Time in milliseconds after which the removals must be reconciled again, even if nothing has changed. */
  readonly wakeMilliseconds: number | undefined;
}

export function planRemovals(observed: ObservedRemovals): RemovalPlan {
  const { removals, needs, keepMilliseconds, now } = observed;
  const waiting = removals.filter(({ job, end }) => job.spec.suspend === true && end === undefined);
  const unneededSince = new Map<string, number>();
  for (const { job, place } of waiting) {
    const { uid = '' } = job.metadata;
    if (!isNeeded(place, needs)) {
      unneededSince.set(uid, observed.unneededSince.get(uid) ?? now);
    }
  }
  const due = waiting.filter(({ job }) => {
    const since = unneededSince.get(job.metadata.uid ?? '');
    return since !== undefined && now - since >= keepMilliseconds;
  });
  const underWay = removals.filter(({ job, end }) => job.spec.suspend !== true && end === undefined).length;
  // Removals begin in groups, so that the operator asks the API server only once per group what is still needed.
  const places = underWay > REMOVALS_LIMIT / 2 ? 0 : REMOVALS_LIMIT - underWay;
  const ended = removals.flatMap((removal) =>
    removal.end === undefined ? [] : [{ ...removal, end: removal.end }],
  );
  const wakeMilliseconds = waiting.length === 0 ? undefined : Math.min(LOOK_MILLISECONDS, keepMilliseconds);
  return { unneededSince, due: due.slice(0, places), ended, wakeMilliseconds };
}
