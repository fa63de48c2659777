/**
 * Plans the next step of a VMPool: which VMs it deletes and suspends, and how many it makes. All functions are pure. Deletions come first, and
 * a pool makes VMs only in a step without deletions. VMs that are being deleted count, because their places are not free yet.
 */
import { POOL_DEFAULTS } from '../../api/v1alpha1/poolmembers.ts';
import type { VMPool, VMPoolStatus } from '../../api/v1alpha1/vmpool.ts';
import { waitAfter } from '../../base/backoff.ts';
import { soonest, timestamp } from '../../base/time.ts';
import type { PoolMember, ObservedPool } from './observe.ts';

/** Largest number of VMs that start at once before one of their revision was Ready. */
const AT_ONCE = 4;
/**
 * Largest number of VMs that a pool makes in one step, once one of their revision was Ready. A step takes 0.1 s, so a pool makes more VMs than
 * a control plane of two processors starts, and other requests are not delayed by more than one step.
 */
const REFILL = 16;
/** Number of VMs above `replicas` while VMs are replaced. */
export const SURGE = 1;
/** Number of VMs in a row that fail before the pool makes no more. */
export const FAILURES_LIMIT = 5;
/** Waits in milliseconds after a failure: the first one, and the longest one. */
const BACKOFF = { first: 10_000, cap: 600_000 } as const;
/**
 * Time in milliseconds after which a pool looks again at what no change of a VM shows: free slots, VMs that wait, and images on hosts. It is
 * short while the pool waits for slots.
 */
const LOOK = { waiting: 2_000, idle: 60_000 } as const;

export type Failures = VMPoolStatus['failures'];

/** Why a pool makes no VMs although some are missing. */
export type Held = 'Yielding' | 'KeepsFreeSlots' | 'MemberBackOff' | 'MembersFail' | 'ImageMissing';

export interface Deletion {
  readonly member: PoolMember;
  /** Whether the member counts as failed. */
  readonly isFailure: boolean;
}

export interface PoolPlan {
  readonly deletions: readonly Deletion[];
  /** VMs that are Ready and must be suspended. */
  readonly suspensions: readonly PoolMember[];
  /** Number of VMs to make. */
  readonly creations: number;
  readonly held: Held | undefined;
  /** Failures in a row before this step. */
  readonly failures: Failures;
  /** Time in milliseconds after which the pool must be planned again, even if nothing changes. */
  readonly wakeMilliseconds: number;
}

export function planPool(observed: ObservedPool): PoolPlan {
  const failures = standingFailures(observed);
  const deletions = planDeletions(observed, failures);
  const held = deletions.length > 0 ? undefined : heldBy(observed, failures);
  const creations = deletions.length > 0 || held !== undefined ? 0 : countCreations(observed, failures);
  return {
    deletions,
    suspensions: observed.members.filter(({ state }) => state === 'booted'),
    creations,
    held: missingIn(observed, failures) > 0 ? held : undefined,
    failures,
    wakeMilliseconds: wakeAfter(observed, failures, held),
  };
}

/** Returns true if VMs of the revision that the pool has now have become Ready. */
function isProven({ pool, revision, members }: ObservedPool): boolean {
  return (
    pool.status?.readyRevision === revision || members.some((one) => one.state === 'ready' && !one.isStale)
  );
}

/**
 * Returns the failures in a row. They end when a VM of the pool becomes Ready, when the template or its image changes, and when somebody sets
 * `replicas` to 0.
 */
function standingFailures({ pool, revision, members }: ObservedPool): Failures {
  const { failures, revision: known } = pool.status ?? {};
  if (failures === undefined || known !== revision || pool.spec.replicas === 0) {
    return undefined;
  }
  const failedAt = Date.parse(failures.time);
  const isOver = members.some(({ readySince = 0, isStale }) => !isStale && readySince > failedAt);
  return isOver ? undefined : failures;
}

/** Returns the failures after `failed` was deleted. `now` is in milliseconds since the epoch. */
export function failuresAfter(before: Failures, failed: readonly PoolMember[], now: number): Failures {
  const last = failed.at(-1);
  return last === undefined
    ? before
    : {
        count: (before?.count ?? 0) + failed.length,
        time: timestamp(now),
        name: last.vm.metadata.name,
        message: last.message,
      };
}

function isOneShot({ spec }: Readonly<VMPool>): boolean {
  return spec.mode === 'OneShot';
}

/** Returns the members that are not being deleted and have not failed. */
function living({ members }: ObservedPool): PoolMember[] {
  return members.filter(({ state }) => state !== 'leaving' && state !== 'failed' && state !== 'ended');
}

function isReplacing({ pool, missing }: ObservedPool): boolean {
  return !isOneShot(pool) && missing === undefined && pool.spec.update?.type === 'Replace';
}

/** Returns true if the first VM of a new revision has failed while VMs of an earlier one are left. */
export function isRolloutStopped(observed: ObservedPool, failures: Failures): boolean {
  const isLeft = living(observed).some(({ isStale }) => isStale);
  return isReplacing(observed) && isLeft && failures !== undefined && !isProven(observed);
}

/** Returns true while VMs of an earlier revision are being replaced. */
export function isRollingOut(observed: ObservedPool, failures: Failures): boolean {
  const isLeft = living(observed).some(({ isStale }) => isStale);
  return isReplacing(observed) && isLeft && !isRolloutStopped(observed, failures);
}

/** Returns the number of VMs that the pool may have now, with those that are being deleted. */
function limitOf(observed: ObservedPool, failures: Failures): number {
  return observed.pool.spec.replicas + (isRollingOut(observed, failures) ? SURGE : 0);
}

function missingIn(observed: ObservedPool, failures: Failures): number {
  return limitOf(observed, failures) - observed.members.length;
}

function planDeletions(observed: ObservedPool, failures: Failures): Deletion[] {
  const { members } = observed;
  const ended = members
    .filter(({ state }) => state === 'ended')
    .map((member) => ({ member, isFailure: false }));
  const failed = members
    .filter(({ state }) => state === 'failed')
    .map((member) => ({ member, isFailure: true }));
  const others = isOneShot(observed.pool) ? surplusOneShots(observed) : surplus(observed, failures);
  return [...ended, ...failed, ...others.map((member) => ({ member, isFailure: false }))];
}

/** Returns the VMs above `replicas` that have not run yet, and stale ones without a host. Any other can have a job. */
function surplusOneShots(observed: ObservedPool): PoolMember[] {
  const alive = living(observed);
  const stale = alive.filter(isStaleWithoutHost);
  const others = alive.filter((one) => !isStaleWithoutHost(one));
  const excess = others.length - observed.pool.spec.replicas;
  const surplus = others
    .filter(({ vm }) => vm.status?.firstRunningTime === undefined)
    .toSorted((a, b) => b.createdAt - a.createdAt)
    .slice(0, Math.max(0, excess));
  return [...stale, ...surplus];
}

/** Returns true for a VM of an earlier template that nobody can use yet. Perhaps the template was changed because of it. */
function isStaleWithoutHost({ state, isStale }: PoolMember): boolean {
  return isStale && state === 'unplaced';
}

/**
 * Returns the VMs above the limit, or else the VMs that are replaced now. While another VM waits for a host, those without a host go: they
 * would get the place that the pool makes.
 */
function surplus(observed: ObservedPool, failures: Failures): PoolMember[] {
  const alive = living(observed).toSorted(byWorth);
  const rivals = observed.isAwaited ? alive.filter(({ state }) => state === 'unplaced') : [];
  if (rivals.length > 0) {
    return rivals;
  }
  const excess = alive.length - limitOf(observed, failures);
  return excess > 0 ? alive.slice(0, excess) : replaced(observed, alive, failures);
}

/** Orders VMs that can go: first those without a host, then those that start, then stale ones, and the youngest before the oldest. */
function byWorth(a: PoolMember, b: PoolMember): number {
  return (
    worthOf(a) - worthOf(b) || b.createdAt - a.createdAt || (a.vm.metadata.name < b.vm.metadata.name ? -1 : 1)
  );
}

function worthOf({ state, isStale }: PoolMember): number {
  const worth = { unplaced: 0, starting: 2, booted: 2 } as const;
  const own = state === 'unplaced' || state === 'starting' || state === 'booted' ? worth[state] : 4;
  return own - (isStale ? 1 : 0);
}

/**
 * Returns the VMs that go because they are stale or too old, the oldest first. As many VMs stay Ready as `maxUnavailable` demands. Before a VM
 * of the new revision was Ready, a stale VM goes only if the new one waits for a host.
 */
function replaced(observed: ObservedPool, alive: readonly PoolMember[], failures: Failures): PoolMember[] {
  const { pool } = observed;
  const { maxUnavailable = POOL_DEFAULTS.maxUnavailable } = pool.spec.update ?? {};
  const rolls = isRollingOut(observed, failures);
  const isWaiting = alive.some(({ isUnschedulable, isStale }) => isUnschedulable && !isStale);
  const mayRoll = rolls && (isProven(observed) || isWaiting);
  const ready = alive.filter(({ state }) => state === 'ready');
  const spare = ready.length - (pool.spec.replicas - maxUnavailable);
  const unready = alive.filter(
    (one) => isStaleWithoutHost(one) || (one.isStale && mayRoll && one.state !== 'ready'),
  );
  const going = ready
    .filter(({ isStale, isOld }) => (isStale && mayRoll) || (isOld && failures === undefined))
    .toSorted((a, b) => a.createdAt - b.createdAt)
    .slice(0, Math.max(0, spare));
  return [...unready, ...going];
}

function heldBy(observed: ObservedPool, failures: Failures): Held | undefined {
  const { pool, missing, isAwaited, freeSlots, members, now } = observed;
  const { keepFreeSlots = POOL_DEFAULTS.keepFreeSlots } = pool.spec;
  if (missing !== undefined) {
    return 'ImageMissing';
  }
  if (failures !== undefined && failures.count >= FAILURES_LIMIT) {
    return 'MembersFail';
  }
  if (failures !== undefined && now < retryAt(failures)) {
    return 'MemberBackOff';
  }
  if (isAwaited) {
    return 'Yielding';
  }
  const unplaced = members.filter(({ state }) => state === 'unplaced').length;
  return keepFreeSlots > 0 && freeSlots - unplaced <= keepFreeSlots ? 'KeepsFreeSlots' : undefined;
}

/** Returns the time of the next attempt after a failure, in milliseconds since the epoch. */
function retryAt({ count, time }: NonNullable<Failures>): number {
  return Date.parse(time) + waitAfter(count, BACKOFF.first, BACKOFF.cap);
}

function countCreations(observed: ObservedPool, failures: Failures): number {
  const { pool, members, freeSlots } = observed;
  const unready = living(observed).filter(({ state, isStale }) => state !== 'ready' && !isStale).length;
  const unplaced = members.filter(({ state }) => state === 'unplaced').length;
  const { keepFreeSlots = POOL_DEFAULTS.keepFreeSlots } = pool.spec;
  const spared = keepFreeSlots > 0 ? freeSlots - unplaced - keepFreeSlots : Number.POSITIVE_INFINITY;
  return Math.max(0, Math.min(missingIn(observed, failures), attempts(observed, failures, unready), spared));
}

/**
 * Returns how many VMs may be made now. After a failure, it is one at a time. Before a VM of the revision was Ready, at most {@link AT_ONCE}
 * start at once, so that a broken image costs few starts. A roll-out begins with a single VM.
 */
function attempts(observed: ObservedPool, failures: Failures, unready: number): number {
  if (failures !== undefined) {
    return 1 - unready;
  }
  if (isProven(observed)) {
    // More VMs that wait for a host would be of no use.
    const waiting = observed.members.filter(({ isUnschedulable }) => isUnschedulable).length;
    return waiting > 0 ? AT_ONCE - waiting : REFILL;
  }
  const isFirst = isRollingOut(observed, failures) && living(observed).some(({ state }) => state === 'ready');
  return (isFirst ? 1 : AT_ONCE) - unready;
}

function wakeAfter(observed: ObservedPool, failures: Failures, held: Held | undefined): number {
  const { members, now } = observed;
  const dates = members.filter(({ state }) => state !== 'leaving').map(({ dueAt }) => dueAt);
  const retry = failures === undefined ? undefined : retryAt(failures);
  const next = soonest(
    ...[...dates, retry].filter((at) => at !== undefined && Number.isFinite(at) && at > now),
  );
  const isWaiting = held === 'Yielding' || held === 'KeepsFreeSlots';
  return Math.max(
    1,
    Math.min(isWaiting ? LOOK.waiting : LOOK.idle, (next ?? Number.POSITIVE_INFINITY) - now),
  );
}
