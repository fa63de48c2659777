/** Gathers what power by demand must know: the VMs that wait, and the state of each host. All functions are pure. */
import { awaitedOn } from '../../../api/v1alpha1/awaited.ts';
import { CORDONED_FOR_ANNOTATION } from '../../../api/v1alpha1/names.ts';
import type { LastAction, PowerRequest, Server } from '../../../api/v1alpha1/server.ts';
import { waitAfter } from '../../../base/backoff.ts';
import type { Node, Pod } from '../../../kube/core.ts';
import type { Job } from '../../../kube/job.ts';
import type { OperatorConfig } from '../../config/config.ts';
import { isHost } from '../../host/observe.ts';
import { acceptedAt, BY_DEMAND, isByDemand, isUp, openAction, startDeadline } from '../../host/starting.ts';
import { conditionIn } from '../../objects/conditions.ts';
import { holdsSlot } from '../../tasks/slots.ts';
import { type Place, placeOn } from './places.ts';

/** Longest wait in milliseconds before a host that did not start is tried again. An hour later, somebody may have repaired it. */
const RETRY_CAP_MILLISECONDS = 3_600_000;
/**
 * Time in milliseconds in which a controller accepts a request. A driver waits at most 10 s for one call. After this time, the request
 * delays no other one, and its host does not count as starting.
 */
export const ACCEPTANCE_MILLISECONDS = 15_000;

/**
 * State of a host for this policy. `on`: it takes machines. `starting`: it will take machines soon. `off`: it can be switched on. `late`: this
 * policy switched it on, and it did not start in time. `leaving`: it is being switched off. `other`: the policy leaves it alone.
 */
export type HostState = 'on' | 'starting' | 'off' | 'late' | 'leaving' | 'other';

export interface HostFacts {
  readonly node: Readonly<Node>;
  /** Counts the free space. Most decisions do not need it, and a fleet has thousands of hosts. */
  readonly place: () => Place;
  readonly state: HostState;
  /** Server that carries the host. It is undefined if there is none. */
  readonly server: Readonly<Server> | undefined;
  /** Whether the policy may request an action: the controller answers, and no action is requested or runs. */
  readonly isFree: boolean;
  /** Time since which the host is empty, in milliseconds since the epoch. It is undefined if it is not empty. */
  readonly emptySince: number | undefined;
  /** Whether a VM is off on the host, and must run. */
  readonly isAwaited: boolean;
  /** Number of times in a row that the host did not start after a request of this policy. */
  readonly failures: number;
  /** Time before which the host is not tried again, in milliseconds since the epoch. */
  readonly retryAt: number;
}

export interface DemandFacts {
  readonly hosts: readonly HostFacts[];
  /** Pods of VMs that the scheduler could not place, the oldest first. */
  readonly waiting: readonly Readonly<Pod>[];
  /** Whether a controller has a request of this policy, and might still accept it. */
  readonly isRequesting: boolean;
  readonly config: OperatorConfig['powerByDemand'];
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

/** What the caches have about one host. */
export interface HostObjects {
  readonly node: Readonly<Node>;
  readonly server: Readonly<Server> | undefined;
  /** Pods on the host: of VMs, Emulators and tasks. */
  readonly pods: { readonly machines: readonly Readonly<Pod>[]; readonly tasks: readonly Readonly<Pod>[] };
  /** Jobs that only this host can do. */
  readonly jobs: readonly Readonly<Job>[];
  /** Whether a VM is off on the host, and must run. */
  readonly isAwaited: boolean;
  /** Time since which this process has seen the host empty and on. It is undefined if it has not. */
  readonly seenEmptySince: number | undefined;
}

type Context = Pick<DemandFacts, 'config' | 'now'>;

/** Returns `by` of a request for a host that did not start the last `failures` times. The number is stored nowhere else. */
export function byDemand(failures: number): string {
  return failures === 0 ? BY_DEMAND : `${BY_DEMAND}, after ${failures} failed starts`;
}

/** Returns true if the scheduler found no host for the Pod. */
export function isWaiting({ spec, status, metadata }: Readonly<Pod>): boolean {
  const scheduled = conditionIn(status, 'PodScheduled');
  const isUnbound = spec.nodeName === undefined && metadata.deletionTimestamp === undefined;
  return isUnbound && scheduled?.status === 'False' && scheduled.reason === 'Unschedulable';
}

/** Returns true if there is no machine in any state on the host, and no task. An ended machine counts, because its disk can be needed. */
function isEmpty({ node, pods, jobs }: Omit<HostObjects, 'seenEmptySince'>): boolean {
  return (
    pods.machines.length === 0 &&
    !pods.tasks.some(holdsSlot) &&
    jobs.every(hasFinished) &&
    Object.keys(awaitedOn(node)).length === 0
  );
}

/**
 * Returns for each host the time since which this process has seen it on and empty, in milliseconds since the epoch. `before` is the result of
 * the last call. A new leader begins with an empty map, so each host is empty for its full time again.
 */
export function seeEmpty(
  hosts: readonly Omit<HostObjects, 'seenEmptySince'>[],
  before: ReadonlyMap<string, number>,
  now: number,
): ReadonlyMap<string, number> {
  const idle = hosts.filter((host) => isUp(host.server, host.node) && isEmpty(host));
  return new Map(idle.map(({ node: { metadata } }) => [metadata.name, before.get(metadata.name) ?? now]));
}

function hasFinished({ status }: Readonly<Job>): boolean {
  return ['Complete', 'Failed'].some((type) => conditionIn(status, type)?.status === 'True');
}

export function hostFacts(objects: HostObjects, context: Context): HostFacts {
  const { node, server, pods, seenEmptySince } = objects;
  const { failures, failedAt } = failedStarts(objects, context);
  const state = stateOf(server, { ...context, node, failures });
  const bootMilliseconds = context.config.bootSeconds * 1000;
  const wait = failures === 0 ? 0 : waitAfter(failures, bootMilliseconds, RETRY_CAP_MILLISECONDS);
  return {
    node,
    place: () => placeOn(node, [...pods.machines, ...pods.tasks]),
    state,
    server,
    isFree: server !== undefined && isReachable(server) && openAction(server) === undefined,
    emptySince: isEmpty(objects) ? Math.max(seenEmptySince ?? context.now, lastEnd(server)) : undefined,
    isAwaited: objects.isAwaited,
    failures,
    retryAt: failedAt + wait,
  };
}

function isReachable({ status, metadata }: Readonly<Server>): boolean {
  return metadata.deletionTimestamp === undefined && conditionIn(status, 'Reachable')?.status === 'True';
}

/** Returns the time when the last action ended. A host whose switching off failed is not tried again at once. */
function lastEnd(server: Readonly<Server> | undefined): number {
  return Date.parse(server?.status?.lastAction?.completedAt ?? '') || 0;
}

interface Silent extends Context {
  readonly node: Readonly<Node>;
  readonly failures: number;
}

function stateOf(server: Readonly<Server> | undefined, context: Silent): HostState {
  const { node } = context;
  if (!isHost(node) || isCordonedByOthers(node)) {
    return 'other';
  }
  const open = server && openAction(server);
  if (open?.action === 'Off') {
    return 'leaving';
  }
  if (isUp(server, node) && open?.action !== 'Reboot') {
    return node.spec?.unschedulable === true ? 'other' : 'on';
  }
  return server === undefined ? 'other' : stateOfSilent(server, context);
}

/** Returns the state of a host that does not report. */
function stateOfSilent(server: Readonly<Server>, { node, failures, config, now }: Silent): HostState {
  const open = openAction(server);
  const until = startDeadline(server, node, config.bootSeconds);
  if (until !== undefined && now < until) {
    return open !== undefined && isUnanswered(open, now) ? 'other' : 'starting';
  }
  if (open !== undefined) {
    return 'other';
  }
  const power = server.status?.power;
  return power === 'Off' ? 'off' : power === 'On' && failures > 0 ? 'late' : 'other';
}

/** Returns true if somebody else than Berth has cordoned the host. */
function isCordonedByOthers({ spec, metadata }: Readonly<Node>): boolean {
  return spec?.unschedulable === true && metadata.annotations?.[CORDONED_FOR_ANNOTATION] === undefined;
}

/** Returns true if the controller should have accepted the action by now. */
function isUnanswered(action: PowerRequest | LastAction, now: number): boolean {
  return acceptedAt(action) === undefined && now >= Date.parse(action.requestedAt) + ACCEPTANCE_MILLISECONDS;
}

/** Counts the starts in a row that this policy requested and that failed, and returns the time of the last failure. */
function failedStarts(
  { node, server }: HostObjects,
  { config, now }: Context,
): { failures: number; failedAt: number } {
  const last = server?.status?.lastAction;
  if (server === undefined || last === undefined || !isByDemand(last) || isUp(server, node)) {
    return { failures: 0, failedAt: 0 };
  }
  const before = Number(/after (\d+) failed/.exec(last.by)?.[1] ?? 0);
  const endedAt = Date.parse(last.completedAt ?? '') || now;
  const until = startDeadline(server, node, config.bootSeconds);
  const isStarting = openAction(server) !== undefined || (until !== undefined && now < until);
  if (last.action === 'Off' || isStarting) {
    return { failures: before, failedAt: endedAt };
  }
  const failedAt = until ?? endedAt;
  return wasReadyAt(node, failedAt) ? { failures: 0, failedAt: 0 } : { failures: before + 1, failedAt };
}

/** Returns true if a host that is not Ready was Ready at this time, in milliseconds since the epoch. */
function wasReadyAt({ status }: Readonly<Node>, at: number): boolean {
  return Date.parse(conditionIn(status, 'Ready')?.lastTransitionTime ?? '') > at;
}

/** Returns true while a request of this policy waits for its controller. */
export function isPending(server: Readonly<Server>, now: number): boolean {
  const open = openAction(server);
  return open !== undefined && isByDemand(open) && acceptedAt(open) === undefined && !isUnanswered(open, now);
}
