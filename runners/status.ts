/** Computes the status of a RunnerSet. All functions are pure. */
import { classOf, meaningOf, type Reason } from '../api/v1alpha1/reasons.ts';
import type { RunnerSet, RunnerSetStatus, Statistics } from '../api/v1alpha1/runnerset.ts';
import { timestamp } from '../base/time.ts';
import { stampTimes } from '../kube/conditions.ts';
import type { Condition } from '../kube/objects.ts';
import type { SetPlan } from './plan.ts';

type Draft = Omit<Condition, 'lastTransitionTime' | 'observedGeneration'>;

/** Why something does not work, for people. */
export interface Trouble {
  readonly reason: Reason;
  readonly message: string;
}

/** What a pass observed. */
export interface SetReport {
  readonly set: Readonly<RunnerSet>;
  /** Whether the message session is open, or why not. It is undefined before the first attempt has ended. */
  readonly connection: 'open' | Trouble | undefined;
  readonly scaleSetID: number | undefined;
  readonly statistics: Statistics | undefined;
  readonly capacity: number;
  /** The plan of this pass. It is undefined if GitHub did not list the runners. */
  readonly plan: SetPlan | undefined;
  /** Why the pass could not do all of its plan. */
  readonly trouble: Trouble | undefined;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

export function runnerSetStatus(report: SetReport): RunnerSetStatus {
  const { set, capacity, now } = report;
  const generation = set.metadata.generation ?? 0;
  const drafts = [connected(report), ready(report), progress(report)].filter((draft) => draft !== undefined);
  const complete = drafts.map((draft) => ({ ...draft, message: draft.message || meaningOf(draft.reason) }));
  return {
    observedGeneration: generation,
    ...numbersOf(report),
    capacity,
    conditions: stampTimes(complete, set.status?.conditions, { now: timestamp(now), generation }),
  };
}

/** Returns the numbers of this pass. Numbers that it does not have stay as they are. */
function numbersOf({ set, scaleSetID, statistics, plan }: SetReport): RunnerSetStatus {
  const before = set.status ?? {};
  const counts = plan === undefined ? before : { runners: plan.live.length, readyRunners: countReady(plan) };
  return {
    scaleSetID: scaleSetID ?? before.scaleSetID,
    statistics: statistics ?? before.statistics,
    wanted: plan?.wanted ?? before.wanted,
    runners: counts.runners,
    readyRunners: counts.readyRunners,
  };
}

export function countReady({ live }: SetPlan): number {
  return live.filter(({ readyAt }) => readyAt !== undefined).length;
}

function connected({ connection }: SetReport): Draft {
  const type = 'Connected';
  if (connection === undefined) {
    return { type, status: 'Unknown', reason: 'SessionNotOpenYet', message: '' };
  }
  return connection === 'open'
    ? { type, status: 'True', reason: 'SessionOpen', message: '' }
    : { type, status: 'False', ...connection };
}

/** Returns why the set is not as declared. It is undefined if it is. */
function obstacleOf({ connection, plan, trouble }: SetReport): Trouble | undefined {
  if (connection === undefined) {
    return { reason: 'SessionNotOpenYet', message: '' };
  }
  if (connection !== 'open') {
    return connection;
  }
  if (trouble !== undefined) {
    return trouble;
  }
  const { wanted } = plan ?? {};
  if (plan === undefined || wanted === undefined || countReady(plan) < wanted) {
    const message =
      plan === undefined || wanted === undefined
        ? ''
        : `${countReady(plan)} of ${wanted} wanted VMs are Ready${describeObstacle(plan)}`;
    return { reason: 'RunnersStarting', message };
  }
  return undefined;
}

/** Tells why a VM has no host yet. Otherwise nobody would look at VMs whose names change. */
function describeObstacle({ live }: SetPlan): string {
  const [first] = live.filter(({ obstacle }) => obstacle !== undefined);
  return first === undefined ? '' : `. VM ${first.name} has no host: ${first.obstacle}`;
}

function ready(report: SetReport): Draft {
  const obstacle = obstacleOf(report);
  return obstacle === undefined
    ? { type: 'Ready', status: 'True', reason: 'RunnersReady', message: '' }
    : { type: 'Ready', status: 'False', ...obstacle };
}

/** Returns Stalled for an obstacle that somebody must remove, and Reconciling for any other. */
function progress(report: SetReport): Draft | undefined {
  const obstacle = obstacleOf(report);
  const isStalled = classOf(obstacle?.reason, 'RunnerSet') === 'mendable';
  return obstacle && { type: isStalled ? 'Stalled' : 'Reconciling', status: 'True', ...obstacle };
}
