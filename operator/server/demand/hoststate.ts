/** Derives the state of a host, and its failed starts, from its Node and its Server. All functions are pure. */
import { CORDONED_FOR_ANNOTATION } from '../../../api/v1alpha1/names.ts';
import type { LastAction, PowerRequest, Server } from '../../../api/v1alpha1/server.ts';
import type { Node } from '../../../kube/core.ts';
import { isHost } from '../../host/observe.ts';
import { acceptedAt, BY_DEMAND, isByDemand, isUp, openAction, startDeadline } from '../../host/starting.ts';
import { conditionIn } from '../../objects/conditions.ts';

/**
 * Time in milliseconds in which a controller accepts a request. A driver waits at most 10 s for one call. After this time, the request
 * delays no other one, and its host does not count as starting.
 */
const ACCEPTANCE_MILLISECONDS = 15_000;

/**
 * State of a host for this policy. `on`: it takes machines. `starting`: it will take machines soon. `off`: it can be switched on. `late`: this
 * policy switched it on, and it did not start in time. `leaving`: it is being switched off. `other`: the policy leaves it alone.
 */
export type HostState = 'on' | 'starting' | 'off' | 'late' | 'leaving' | 'other';

export interface Carrier {
  readonly node: Readonly<Node>;
  readonly server: Readonly<Server> | undefined;
}

export interface Clock {
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
  readonly bootSeconds: number;
}

/** Starts in a row that this policy requested and that failed. */
export interface FailedStarts {
  readonly count: number;
  /** Time of the last failure, in milliseconds since the epoch. */
  readonly at: number;
}

const NONE: FailedStarts = { count: 0, at: 0 };

/** Returns `by` of a request for a host that did not start the last `failures` times. The number is stored nowhere else. */
export function byDemand(failures: number): string {
  return failures === 0 ? BY_DEMAND : `${BY_DEMAND}, after ${failures} failed starts`;
}

export function hostState(carrier: Carrier, failures: number, clock: Clock): HostState {
  const { node, server } = carrier;
  if (!isHost(node) || isCordonedByOthers(node)) {
    return 'other';
  }
  const action = server && openAction(server)?.action;
  if (action === 'Off') {
    return 'leaving';
  }
  if (isUp(server, node) && action !== 'Reboot') {
    // Berth is about to remove its cordon.
    return isCordoned(node) ? 'starting' : 'on';
  }
  return server === undefined ? 'other' : silentState({ node, server }, failures, clock);
}

type WithServer = Carrier & { readonly server: Readonly<Server> };

/** Returns the state of a host that does not report. */
function silentState({ node, server }: WithServer, failures: number, { now, bootSeconds }: Clock): HostState {
  const open = openAction(server);
  const until = startDeadline(server, node, bootSeconds);
  if (until !== undefined && now < until) {
    return open !== undefined && isUnanswered(open, now) ? 'other' : 'starting';
  }
  return open === undefined ? restingState(server, failures) : 'other';
}

function restingState({ status }: Readonly<Server>, failures: number): HostState {
  if (status?.power === 'Off') {
    return 'off';
  }
  return status?.power === 'On' && failures > 0 ? 'late' : 'other';
}

function isCordoned({ spec }: Readonly<Node>): boolean {
  return spec?.unschedulable === true;
}

/** Returns true if somebody else than Berth has cordoned the host. */
function isCordonedByOthers(node: Readonly<Node>): boolean {
  return isCordoned(node) && node.metadata.annotations?.[CORDONED_FOR_ANNOTATION] === undefined;
}

/** Returns true if the controller should have accepted the action by now. */
function isUnanswered(action: PowerRequest | LastAction, now: number): boolean {
  return acceptedAt(action) === undefined && now >= Date.parse(action.requestedAt) + ACCEPTANCE_MILLISECONDS;
}

/**
 * Returns true while the operator has not begun a request of this policy. It begins a request within a fraction of a second, unless it waits
 * for a controller that has just stopped answering.
 */
export function isPending({ status }: Readonly<Server>, now: number): boolean {
  const { request } = status ?? {};
  return request !== undefined && isByDemand(request) && !isUnanswered(request, now);
}

export function failedStarts({ node, server }: Carrier, clock: Clock): FailedStarts {
  const last = server?.status?.lastAction;
  return server === undefined || last === undefined || !isByDemand(last) || isUp(server, node)
    ? NONE
    : failuresUntil({ node, server }, last, clock);
}

function failuresUntil(
  { node, server }: WithServer,
  last: LastAction,
  { now, bootSeconds }: Clock,
): FailedStarts {
  const count = countIn(last);
  const endedAt = Date.parse(last.completedAt ?? '') || now;
  const until = startDeadline(server, node, bootSeconds) ?? endedAt;
  if (last.action === 'Off' || openAction(server) !== undefined || now < until) {
    return { count, at: endedAt };
  }
  return wasReadyAt(node, until) ? NONE : { count: count + 1, at: until };
}

/** Reads the number of failed starts from `by`. */
function countIn({ by }: LastAction): number {
  return Number(/after (\d+) failed/.exec(by)?.[1] ?? 0);
}

/** Returns true if a host that does not report was Ready at this time, in milliseconds since the epoch. */
function wasReadyAt({ status }: Readonly<Node>, at: number): boolean {
  return Date.parse(conditionIn(status, 'Ready')?.lastTransitionTime ?? '') > at;
}
