/** Computes the status of a VMPool from the observed state and the plan, and the Events for its changes. All functions are pure. */
import { POOL_LABEL } from '../../api/v1alpha1/names.ts';
import { meaningOf, type Reason } from '../../api/v1alpha1/reasons.ts';
import type { VMPool, VMPoolStatus } from '../../api/v1alpha1/vmpool.ts';
import { timestamp } from '../../base/time.ts';
import { type ConditionDraft, conditionIn, stampConditions } from '../objects/conditions.ts';
import { normal, type OperatorEvent, warning } from '../objects/events.ts';
import type { PoolMember, ObservedPool } from './observe.ts';
import {
  type Failures,
  FAILURES_LIMIT,
  type Held,
  isRollingOut,
  isRolloutStopped,
  type PoolPlan,
} from './plan.ts';

/** What happened while the plan was carried out. */
export interface PoolOutcome {
  readonly failures: Failures;
  /** Message of the API server if it refused a new VM. */
  readonly refused: string | undefined;
  /** Number of claims that the status does not count yet. */
  readonly claims: number;
}

interface Counts {
  readonly wanted: number;
  readonly alive: number;
  readonly ready: number;
  readonly stale: number;
}

interface Found {
  readonly reason: Reason;
  readonly message: string;
}

const HELD_REASONS: Readonly<Record<Held, Reason>> = {
  Yielding: 'Yielding',
  KeepsFreeSlots: 'KeepsFreeSlots',
  MemberBackOff: 'MemberBackOff',
  MembersFail: 'MembersFail',
  ImageMissing: 'PoolImageMissing',
};

export function summarizePool(observed: ObservedPool, plan: PoolPlan, outcome: PoolOutcome): VMPoolStatus {
  const { pool, revision, now } = observed;
  const { metadata, status: last } = pool;
  const counts = countMembers(observed);
  const hasReady = observed.members.some(({ state, isStale }) => state === 'ready' && !isStale);
  const drafts = conditionsOf(observed, plan, outcome, counts);
  return {
    observedGeneration: metadata.generation ?? 0,
    replicas: counts.alive,
    readyReplicas: counts.ready,
    staleReplicas: counts.stale,
    claimedTotal: (last?.claimedTotal ?? 0) + outcome.claims,
    selector: `${POOL_LABEL}=${metadata.name}`,
    revision,
    readyRevision: hasReady ? revision : last?.readyRevision,
    failures: outcome.failures,
    conditions: stampConditions(drafts, last?.conditions, {
      now: timestamp(now),
      generation: metadata.generation ?? 0,
    }),
  };
}

function countMembers({ pool, members }: ObservedPool): Counts {
  const alive = members.filter(({ state }) => state !== 'leaving');
  return {
    wanted: pool.spec.replicas,
    alive: alive.length,
    ready: alive.filter(({ state }) => state === 'ready').length,
    stale: alive.filter(({ isStale }) => isStale).length,
  };
}

function conditionsOf(
  observed: ObservedPool,
  plan: PoolPlan,
  outcome: PoolOutcome,
  counts: Counts,
): ConditionDraft[] {
  const isFull = counts.ready >= counts.wanted && counts.alive <= counts.wanted;
  const work = workOf(observed, plan, outcome, counts);
  const full = { reason: 'PoolFull', message: `${counts.ready} of ${counts.wanted} VMs are Ready` } as const;
  const stalled = stalledBy(observed, outcome);
  const isRolling = counts.stale > 0;
  return [
    { type: 'Ready', status: isFull ? 'True' : 'False', ...(isFull ? full : (work ?? full)) },
    progressing(stalled, isRolling ? rollOf(observed, outcome, counts) : undefined, work ?? full, !isFull),
    ...(stalled === undefined ? [] : [{ type: 'Stalled', status: 'True' as const, ...stalled }]),
    imageCached(observed),
  ];
}

/** Returns the condition Progressing. It is True while VMs are missing, or VMs of an earlier revision are left. */
function progressing(
  stalled: Found | undefined,
  roll: Found | undefined,
  work: Found,
  isMissing: boolean,
): ConditionDraft {
  const type = 'Progressing';
  if (stalled !== undefined) {
    return { type, status: 'False', ...stalled };
  }
  return { type, status: isMissing || roll !== undefined ? 'True' : 'False', ...(roll ?? work) };
}

/** Returns why the pool is not full. The result is undefined if it is. */
function workOf(
  { members, missing }: ObservedPool,
  plan: PoolPlan,
  outcome: PoolOutcome,
  counts: Counts,
): Found | undefined {
  if (counts.alive > counts.wanted) {
    const message = `${counts.alive} VMs exist, and ${counts.wanted} are wanted`;
    return { reason: 'ScalingDown', message };
  }
  if (counts.ready >= counts.wanted) {
    return undefined;
  }
  const state = `${counts.ready} of ${counts.wanted} VMs are Ready`;
  if (outcome.refused !== undefined) {
    return { reason: 'VMRefused', message: `${state}. The API server refuses new VMs: ${outcome.refused}` };
  }
  if (plan.held !== undefined) {
    return {
      reason: HELD_REASONS[plan.held],
      message: `${state}. ${missing ?? whyHeld(plan.held, outcome.failures)}`,
    };
  }
  const unplaced = members.filter(({ isUnschedulable }) => isUnschedulable);
  const isOnlyUnplaced =
    unplaced.length > 0 && !members.some(({ state: one }) => one === 'starting' || one === 'booted');
  return isOnlyUnplaced
    ? { reason: 'NoHostFree', message: `${state}. ${waitsFor(unplaced)}` }
    : { reason: 'Refilling', message: state };
}

function whyHeld(held: Held, failures: Failures): string {
  const last = failures && `The last, ${failures.name}: ${failures.message}`;
  switch (held) {
    case 'MembersFail':
      return `${failures?.count} VMs in a row failed, so the pool makes no more. ${last}`;
    case 'MemberBackOff':
      return `${failures?.count} VMs in a row failed, so the pool waits before it makes another one. ${last}`;
    default:
      return meaningOf(HELD_REASONS[held]);
  }
}

/** Returns how many VMs wait for a host, with the reason of the oldest. */
function waitsFor(unplaced: readonly PoolMember[]): string {
  const [oldest] = unplaced.toSorted((a, b) => a.createdAt - b.createdAt);
  const subject = unplaced.length === 1 ? '1 VM waits for a host' : `${unplaced.length} VMs wait for a host`;
  return `${subject}: ${oldest?.message ?? ''}`;
}

function stalledBy(observed: ObservedPool, { failures }: PoolOutcome): Found | undefined {
  if (failures !== undefined && failures.count >= FAILURES_LIMIT) {
    return { reason: 'MembersFail', message: whyHeld('MembersFail', failures) };
  }
  if (failures !== undefined && isRolloutStopped(observed, failures)) {
    const message = `The first VM of the new template or image failed, so the pool keeps the earlier VMs. ${failures.name}: ${failures.message}`;
    return { reason: 'RolloutStopped', message };
  }
  return undefined;
}

function rollOf(observed: ObservedPool, { failures }: PoolOutcome, counts: Counts): Found {
  const left = `${counts.stale} of ${counts.alive} VMs are of an earlier template or image`;
  return isRollingOut(observed, failures)
    ? { reason: 'RollingOut', message: left }
    : { reason: 'StaleMembers', message: `${left}. They stay until they are claimed or too old` };
}

function imageCached({ hosts: { nodes, withImage } }: ObservedPool): ConditionDraft {
  const type = 'ImageCached';
  if (withImage === undefined || nodes.length === 0) {
    return { type, status: 'Unknown', reason: 'ImageUnknown', message: '' };
  }
  const message = `${withImage} of ${nodes.length} hosts that suit have the image`;
  return withImage === nodes.length
    ? { type, status: 'True', reason: 'ImageOnHosts', message }
    : { type, status: 'False', reason: 'ImageNotOnHosts', message };
}

/** Returns true if a status can be stored later, because only its numbers and its messages changed. */
export function mayWait(last: VMPoolStatus | undefined, next: VMPoolStatus): boolean {
  const decided = (status: VMPoolStatus | undefined) =>
    JSON.stringify([
      status?.observedGeneration,
      status?.revision,
      status?.readyRevision,
      status?.failures,
      status?.conditions?.map(({ type, status: value, reason }) => [type, value, reason]),
    ]);
  return decided(last) === decided(next);
}

/** Returns the Events of the change from the last status to the next. */
export function poolEvents({ status: last }: Readonly<VMPool>, next: VMPoolStatus): OperatorEvent[] {
  const [ready, before] = [next, last].map((status) => conditionIn(status, 'Ready')?.status);
  const [stalled, stalledBefore] = [next, last].map((status) => conditionIn(status, 'Stalled'));
  const { readyReplicas = 0, staleReplicas = 0 } = next;
  const isFull = ready === 'True' && before === 'False';
  const isStopped = stalled?.reason === 'RolloutStopped' && stalledBefore?.reason !== stalled.reason;
  const events = [
    isFull && normal('Refilled', 'Refilling', `The pool has ${readyReplicas} ready VMs`),
    isRolledOut(last, staleReplicas, readyReplicas) &&
      normal('RolledOut', 'RollingOut', 'All VMs of the pool are of its present template and image'),
    isStopped && warning('RolloutStopped', 'RollingOut', stalled.message),
  ];
  return events.filter((event) => event !== false);
}

function isRolledOut(last: VMPoolStatus | undefined, stale: number, ready: number): boolean {
  return (last?.staleReplicas ?? 0) > 0 && stale === 0 && ready > 0;
}
