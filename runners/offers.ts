/**
 * Splits the free places of the hosts among the RunnerSets of this process. The number of jobs that GitHub may assign to a set goes out with
 * its long poll, and GitHub keeps it until the poll ends. So an offer takes its places from the offers to other sets until then.
 */
import { type Asker, type Fleet, Places } from './places.ts';
import type { RunnerVM } from './plan.ts';

/**
 * Time in milliseconds for which the same sets come first if there are fewer places than sets. A poll takes 50 s at most: one ends and gives
 * its place back, and the next one of another set begins and takes it.
 */
export const PERIOD_MILLISECONDS = 120_000;

/** Age in milliseconds up to which a VM counts before it has a Pod. An older VM without a Pod waits for something else than a place. */
export const POD_MILLISECONDS = 30_000;

/** A set in the split. */
export interface Bidder extends Asker {
  /** Number of its VMs that have a host, and that have a job or can take one. */
  readonly placed: number;
  /** Number of further VMs that it needs now, for the jobs that it has and for `min`, and that can use a place. */
  readonly due: number;
  readonly max: number;
  /** Number of jobs in the offer that GitHub has now. It is 0 if GitHub has none. */
  readonly offered: number;
  /** Whether more jobs may wait for the set than it can run, and more places would help. */
  readonly isHungry: boolean;
}

/** VMs that a set has and wants. */
export interface Demand {
  readonly live: readonly RunnerVM[];
  /** Number of VMs that there should be. */
  readonly wanted: number;
  /** Whether missing VMs can be made, as far as anybody knows. */
  readonly canMake: boolean;
  readonly hasPod: (name: string) => boolean;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

/** Number of VMs by the places that they have and can use. */
export interface Counts extends Pick<Bidder, 'placed' | 'due'> {
  /** Whether VMs are missing or wait, and none of them can use a place. */
  readonly isStuck: boolean;
}

/**
 * Counts the VMs of a set. A wrong `configRef` or a quota can keep VMs from their Pods for hours, or prevent new VMs. Such VMs are not due,
 * because other sets would lose the places for them.
 */
export function countVMs({ live, wanted, canMake, hasPod, now }: Demand): Counts {
  const waiting = live.filter(({ isPlaced }) => !isPlaced);
  const usable = waiting.filter(
    ({ name, createdAt }) => hasPod(name) || now - createdAt < POD_MILLISECONDS,
  ).length;
  const missing = Math.max(0, wanted - live.length);
  const due = usable + (canMake ? missing : 0);
  return { placed: live.length - waiting.length, due, isStuck: due === 0 && waiting.length + missing > 0 };
}

/** Returns whether more jobs may wait: GitHub says so, or the set has as many jobs as it was last offered. */
export function isHungry(
  statistics: { readonly totalAssignedJobs: number; readonly totalAvailableJobs: number } | undefined,
  offered: number,
): boolean {
  const { totalAssignedJobs: assigned = 0, totalAvailableJobs: available = 0 } = statistics ?? {};
  return available > 0 || (assigned > 0 && assigned >= offered);
}

/**
 * Returns the number of jobs that the set with this key can be offered: its VMs on hosts, and its share of the free places. `period` counts
 * the periods of {@link PERIOD_MILLISECONDS}. All offers together never need more places than are free, unless others take places meanwhile.
 */
export function offerTo(key: string, bidders: readonly Bidder[], fleet: Fleet, period: number): number {
  const bidder = bidders.find((one) => one.key === key);
  if (bidder === undefined) {
    return 0;
  }
  const share = splitPlaces(bidders, new Places(fleet, bidders), period).get(key) ?? 0;
  return bidder.placed + Math.min(share, countLeft(bidder, bidders, new Places(fleet, bidders)));
}

/** Returns how many places the offers and the needs of the other sets leave. */
function countLeft(bidder: Bidder, bidders: readonly Bidder[], places: Places): number {
  const others = bidders.filter((one) => one !== bidder);
  deal(new Map(), others, places, ({ due, offered, placed }) => Math.max(due, offered - placed));
  return deal(new Map(), [bidder], places, () => Infinity).get(bidder.key) ?? 0;
}

/**
 * Returns the number of places that each set should have. First come the VMs that the sets need for their jobs. Then each set gets one
 * place, so that a first job can come. The others are for the sets that have used up their last offer: a set whose first job comes is soon
 * one of them, and idle sets hold back no places for which others have jobs.
 */
function splitPlaces(bidders: readonly Bidder[], places: Places, period: number): Map<string, number> {
  const order = orderOf(bidders, period);
  const given = new Map<string, number>();
  deal(given, order, places, ({ due }) => due);
  deal(given, order, places, ({ due }) => due + 1);
  return deal(
    given,
    order.filter((one) => one.isHungry || places.isAlone(one)),
    places,
    () => Infinity,
  );
}

/** Gives places in rounds, one to each set in a round, up to the limit of each set and to its maximum. */
function deal(
  given: Map<string, number>,
  order: readonly Bidder[],
  places: Places,
  limitOf: (bidder: Bidder) => number,
): Map<string, number> {
  let remaining = order;
  while (remaining.length > 0) {
    remaining = remaining.filter((bidder) => {
      const has = given.get(bidder.key) ?? 0;
      const mayHave = has < Math.min(limitOf(bidder), bidder.max - bidder.placed);
      if (!mayHave || !places.take(bidder)) {
        return false;
      }
      given.set(bidder.key, has + 1);
      return true;
    });
  }
  return given;
}

/**
 * Returns the sets in the order in which they get places. The first one changes with the periods. In each other period, hungry sets come first,
 * so that places do not wait for jobs that may never come. In the periods between, they come last, so that every set has its turn.
 */
function orderOf(bidders: readonly Bidder[], period: number): Bidder[] {
  const sorted = bidders.toSorted((one, other) => (one.key < other.key ? -1 : 1));
  const parts = [true, false].map((isHungry) => {
    const part = sorted.filter((one) => one.isHungry === isHungry);
    const first = Math.floor(period / 2) % Math.max(1, part.length);
    return [...part.slice(first), ...part.slice(0, first)];
  });
  return (period % 2 === 0 ? parts : parts.toReversed()).flat();
}
