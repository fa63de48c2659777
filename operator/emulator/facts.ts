/**
 * Gathers the facts of an Emulator that are written to its status: the time of its first run, and its failure. A refusal by a host without
 * room is no failure: the operator asks the same host again later, because an Emulator must run on the host of its VM. All functions are
 * pure.
 */
import type { Emulator, EmulatorStatus } from '../../api/v1alpha1/emulator.ts';
import { timestamp } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import { endOfLimit } from '../host/observe.ts';
import { conditionIn } from '../objects/conditions.ts';
import {
  boundTime,
  endOf,
  firstRun,
  hasEnded,
  lastReport,
  machineCondition,
  terminated,
  TIMEOUT,
} from '../podbacked/pod.ts';
import { lostAt } from '../podbacked/observe.ts';
import { type ObservedEmulator, resolveSpec } from './observe.ts';
import { pairingOf } from './pairing.ts';
import { classOf, type RefusalReason } from '../../api/v1alpha1/reasons.ts';
import { REFUSALS } from '../../api/v1alpha1/reasons/failures.ts';

export type EmulatorFailure = NonNullable<EmulatorStatus['failure']>;

export interface EmulatorFacts {
  readonly firstRunningTime: string | undefined;
  /**
   * Failure of the emulator since the last start of the VM. This field is undefined while the VM does not run. Therefore the next start of
   * the VM also starts the emulator again.
   */
  readonly failure: EmulatorFailure | undefined;
}

export function gatherFacts(observed: ObservedEmulator): EmulatorFacts {
  return {
    firstRunningTime: observed.emulator.status?.firstRunningTime ?? firstRun(observed),
    failure: failureOf(observed),
  };
}

function failureOf(observed: ObservedEmulator): EmulatorFailure | undefined {
  const { kind } = pairingOf(observed);
  return kind === 'ended' || kind === 'missing'
    ? undefined
    : (recordedFailure(observed) ?? newFailure(observed));
}

/**
 * Returns the failure that the status records, while this failure still applies. A timeout applies until the VM stops, because the operator
 * itself deletes the Pod after a timeout. Any other failure applies until somebody deletes the ended Pod. A refusal by the host is not a
 * failure.
 */
function recordedFailure({ emulator, pod, now }: ObservedEmulator): EmulatorFailure | undefined {
  const recorded = emulator.status?.failure;
  const hasFailed = pod !== undefined && hasEnded(pod) && refusalOf(pod, now) === undefined;
  return recorded?.reason === TIMEOUT || hasFailed ? recorded : undefined;
}

function newFailure(observed: ObservedEmulator): EmulatorFailure | undefined {
  const { pod, now } = observed;
  if (pod === undefined || pod.metadata.deletionTimestamp !== undefined) {
    return undefined;
  }
  if (isOverdue(observed)) {
    return { reason: TIMEOUT, message: timeoutMessage(observed), time: timestamp(now) };
  }
  const hasFailed = hasEnded(pod) && refusalOf(pod, now) === undefined;
  return hasFailed ? { ...endOf(pod), time: timestamp(now) } : undefined;
}

/**
 * Returns true if, according to the caches, the time limit of the deployment is over. The operator then ends the Pod. After an outage of
 * the API server, the cache can lack the report that the emulator runs.
 */
export function isOverdue(observed: ObservedEmulator): boolean {
  const deadline = deployDeadline(observed);
  return deadline !== undefined && observed.now >= deadline;
}

/**
 * Returns the time when the deployment must be complete, in milliseconds since the epoch. The result is undefined while no deployment is
 * under way, and while the host does not report. When the host reports again, the time limit begins again.
 */
function deployDeadline(observed: ObservedEmulator): number | undefined {
  const { emulator, pod } = observed;
  const began = pod?.spec.nodeName === undefined ? undefined : deploymentBegan(emulator, pod);
  return began === undefined ? undefined : endOfLimit(observed, began, deploySeconds(observed));
}

/**
 * Returns the RFC 3339 time when the present deployment began. A new deployment begins when Android boots again, for example after a power
 * failure of the host. The clock of the host can then be wrong. Therefore the time of the condition Reconciling counts, which the operator
 * stored by its own clock.
 */
function deploymentBegan({ status }: Emulator, pod: Pod): string | undefined {
  if ((pod.status?.phase ?? 'Pending') === 'Pending') {
    return boundTime(pod);
  }
  return isBootingAgain(pod) ? conditionIn(status, 'Reconciling')?.lastTransitionTime : undefined;
}

/** Returns true if Android boots again in a Pod that has already run. */
export function isBootingAgain(pod: Pod): boolean {
  return pod.status?.phase === 'Running' && machineCondition(pod)?.reason === 'Starting';
}

function deploySeconds({ emulator: { spec } }: ObservedEmulator): number {
  return resolveSpec(spec).deployTimeoutSeconds;
}

function timeoutMessage(observed: ObservedEmulator): string {
  const { pod } = observed;
  return `The emulator was not Running ${deploySeconds(observed)} s after it was bound to host ${pod?.spec.nodeName}${lastReport(pod)}`;
}

/**
 * Returns the milliseconds until the next deadline. The result is at least 1, or undefined if there is no deadline. Deadlines are the
 * deployment's time limit, the time when a host that does not report counts as lost, and the next attempt after a refusal.
 */
export function untilNextDeadline(observed: ObservedEmulator): number | undefined {
  const { now } = observed;
  const deadlines = [deployDeadline(observed), lostAt(observed), refusalOf(observed.pod, now)?.retryAt];
  const future = deadlines.filter((at) => at !== undefined && at > now);
  return future.length === 0 ? undefined : Math.max(1, Math.min(...(future as number[])) - now);
}

/**
 * Time in milliseconds from the refusal until the Pod is replaced. During this time, the scheduler learns which machines use the host.
 * Therefore the next Pod waits in the scheduler until the host has room.
 */
const RETRY_MILLISECONDS = 10_000;

interface Refusal {
  readonly reason: RefusalReason;
  readonly message: string;
  /** Time of the next attempt, in milliseconds since the epoch. */
  readonly retryAt: number;
}

/**
 * Returns the refusal with which the Pod ended. The result is undefined if the Pod has not ended, or has ended for another reason. `now` is
 * in milliseconds since the epoch.
 */
export function refusalOf(pod: Pod | undefined, now: number): Refusal | undefined {
  if (pod === undefined || !hasEnded(pod)) {
    return undefined;
  }
  const { reason, message } = endOf(pod);
  return isRefusal(reason) && classOf(reason, 'Emulator') === 'passing'
    ? { reason, message, retryAt: endTime(pod, now) + RETRY_MILLISECONDS }
    : undefined;
}

/**
 * Returns the time when the Pod ended, in milliseconds since the epoch. If this time is impossible because the clock of the host is wrong,
 * returns the time when the Pod was created.
 */
function endTime(pod: Pod, now: number): number {
  const created = Date.parse(pod.metadata.creationTimestamp ?? '');
  const finished = Date.parse(terminated(pod)?.finishedAt ?? '');
  return created <= finished && finished <= now ? finished : created;
}

function isRefusal(reason: string): reason is RefusalReason {
  return Object.hasOwn(REFUSALS, reason);
}
