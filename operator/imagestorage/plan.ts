/** Which removals begin, and which have ended. Pure. */
import type { Job } from '../../kube/job.ts';
import type { Place } from '../image/place.ts';
import { isNeeded, type Needs } from './needs.ts';

/** The longest time between two looks: a need that comes and goes between them is not seen. */
const LOOK_MILLISECONDS = 60_000;

/** How many removals run at once: a namespace with a thousand images must not fill the hosts with Pods. */
const REMOVALS_LIMIT = 20;

/** How it ended; `kept`: why the content is still there. */
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
  /** By the Job's uid: since when no look has seen a need for its content, in milliseconds since the epoch. */
  readonly unneededSince: ReadonlyMap<string, number>;
  /**
   * How long that has to last. What was begun while the content was still named, a copy or a VM, has then been written
   * down and is seen, or has failed.
   */
  readonly keepMilliseconds: number;
  readonly now: number;
}

export interface RemovalPlan {
  readonly unneededSince: ReadonlyMap<string, number>;
  /** Removals to begin, if the API server itself knows of no need either. */
  readonly due: readonly Removal[];
  readonly ended: readonly (Removal & { readonly end: RemovalEnd })[];
  /** When to look again though nothing changes. */
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
  // Many together: the API server is asked once for all that begin.
  const places = underWay > REMOVALS_LIMIT / 2 ? 0 : REMOVALS_LIMIT - underWay;
  const ended = removals.flatMap((removal) =>
    removal.end === undefined ? [] : [{ ...removal, end: removal.end }],
  );
  const wakeMilliseconds = waiting.length === 0 ? undefined : Math.min(LOOK_MILLISECONDS, keepMilliseconds);
  return { unneededSince, due: due.slice(0, places), ended, wakeMilliseconds };
}
