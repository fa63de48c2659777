/** What a plan for a Server consists of, and the parts that all its steps use. All functions are pure. */
import { timestamp } from '../../base/time.ts';
import type {
  LastAction,
  PowerAction,
  PowerRequest,
  Server,
  ServerStatus,
} from '../../api/v1alpha1/server.ts';
import type { Observed } from './observe.ts';

/**
 * Interval of readings of the power in milliseconds, and the interval during an action. People wait for the end of an action. At other times,
 * controllers with little power of their own are seldom asked.
 */
export const POLL_MILLISECONDS = 30_000;
export const ACTION_POLL_MILLISECONDS = 5_000;
/**
 * Time in milliseconds between the cordon of a host and the check for machines. A scheduler that has not seen the cordon yet can bind a Pod
 * in this time. A scheduler normally sees a change within 100 ms.
 */
export const SETTLE_MILLISECONDS = 3_000;
/**
 * Time in milliseconds after which a command without an answer is sent a second time, if the power shows no effect. Real controllers show
 * the effect of a command within 15 s.
 */
export const REPEAT_MILLISECONDS = 30_000;
/** Longest time in milliseconds from an accepted command to its effect. A shutdown by the power button takes the longest. */
export const CONFIRM_MILLISECONDS = 120_000;
/** Time in milliseconds after an accepted reboot in which the power can still show the state before the reboot. */
export const REBOOT_MILLISECONDS = 15_000;
/**
 * Time in milliseconds after the server is on again, after which the Node's condition Ready is current. Kubernetes marks a Node as not Ready
 * 40 s after its last report.
 */
export const STALE_READY_MILLISECONDS = 60_000;
/** Longest time in milliseconds by which the clock of a user may be ahead. A later time of an action is in the future. */
const CLOCK_SKEW_MILLISECONDS = 60_000;
/**
 * Time in milliseconds by which an action can be older than its Server. An older one comes with a copy of an earlier object, for example from
 * a backup, and was done long ago.
 */
const COPIED_MILLISECONDS = 600_000;
/** `by` of actions from `spec.powerAction`. */
export const BY_SPEC = 'spec.powerAction';

export type Effect = { readonly kind: 'send'; readonly command: PowerAction } | { readonly kind: 'cordon' };

/** Part of the status that decides what is done. */
export type ActionStatus = Pick<ServerStatus, 'request' | 'lastAction' | 'lastRequestedAt' | 'host'>;

/** The next step. While `host` is undefined, a cordon that Berth set for the Server is to be removed. */
export interface Plan extends ActionStatus {
  /** What to do after the status is stored. */
  readonly effect?: Effect | undefined;
  /** Time of the next reconcile in milliseconds since the epoch, besides the readings of the power. */
  readonly wakeAt?: number | undefined;
}

/** An action that runs or waits. */
type OpenAction = LastAction & { completedAt?: undefined };

/** Returns true while an action runs or waits. */
export function isOpen(action: LastAction | undefined): action is OpenAction {
  return action !== undefined && action.completedAt === undefined;
}

/** Returns the request that Berth has not begun. A request by the HTTP API or the operator comes before `spec.powerAction`. */
export function pendingRequest({ server, now }: Pick<Observed, 'server' | 'now'>): PowerRequest | undefined {
  const { request } = server.status ?? {};
  if (request !== undefined) {
    return request;
  }
  const { powerAction } = server.spec;
  return powerAction !== undefined && whyNotDone(server, now) === undefined
    ? { id: powerAction.requestedAt, by: BY_SPEC, ...powerAction }
    : undefined;
}

/** Returns why Berth does not do `spec.powerAction`, as the end of a sentence. The result is undefined if Berth does it. */
export function whyNotDone({ spec, status, metadata }: Readonly<Server>, now: number): string | undefined {
  const last = status?.lastRequestedAt;
  const requestedAt = Date.parse(spec.powerAction?.requestedAt ?? '');
  if (last !== undefined && requestedAt <= Date.parse(last)) {
    return `is ignored, because it is not later than the action of ${last}`;
  }
  if (requestedAt < Date.parse(metadata.creationTimestamp ?? '') - COPIED_MILLISECONDS) {
    return 'is ignored, because it is older than the Server';
  }
  return requestedAt > now + CLOCK_SKEW_MILLISECONDS ? 'waits, because its time is in the future' : undefined;
}

/** Returns the part of the status that decides what is done, as it is stored. */
export function before({ server: { status = {} } }: Observed): ActionStatus {
  const { request, lastAction, lastRequestedAt, host } = status;
  return { request, lastAction, lastRequestedAt, host };
}

/** Returns the action with its end. */
export function ended(
  action: LastAction,
  result: LastAction['result'],
  message: string,
  now: number,
): LastAction {
  return { ...action, result, message, completedAt: timestamp(now) };
}

/** Ends the action. A host that was not switched off takes machines again. */
export function end(
  observed: Observed,
  action: LastAction,
  result: LastAction['result'],
  message: string,
): Plan {
  const { now } = observed;
  const { host } = before(observed);
  const isReleased = host !== undefined && host.offAt === undefined;
  return {
    ...before(observed),
    lastAction: ended(action, result, message, now),
    host: isReleased ? undefined : host,
    wakeAt: now,
  };
}

/** Returns the time if it is in the future. A time in the past must not wake a reconcile, which would then run without a pause. */
export function future(at: number, now: number): number | undefined {
  return at > now ? at : undefined;
}
