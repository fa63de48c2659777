/** Gathers what power by demand must know: the VMs that wait, and the state of each host. All functions are pure. */
import { awaitedOn } from '../../../api/v1alpha1/awaited.ts';
import type { Server } from '../../../api/v1alpha1/server.ts';
import { waitAfter } from '../../../base/backoff.ts';
import type { Job, Node, Pod } from '../../../kube/core.ts';
import type { OperatorConfig } from '../../config/config.ts';
import { isUp, openAction } from '../../host/starting.ts';
import { conditionIn } from '../../objects/conditions.ts';
import { holdsSlot, slotsOf } from '../../tasks/slots.ts';
import { type Carrier, failedStarts, type HostState, hostState } from './hoststate.ts';
import { type Place, placeOn } from './places.ts';

/** Longest wait in milliseconds before a host that did not start is tried again. An hour later, somebody may have repaired it. */
const RETRY_CAP_MILLISECONDS = 3_600_000;
export interface HostFacts {
  readonly node: Readonly<Node>;
  /** Counts the free space. Most decisions do not need it, and a fleet has thousands of hosts. */
  readonly place: () => Place;
  /** Whether machines take all slots. This is known without {@link place}. */
  readonly isFull: boolean;
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
  /** Whether a request of this policy has not begun. */
  readonly isRequesting: boolean;
  readonly config: OperatorConfig['powerByDemand'];
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

/** What the caches have about one host. */
export interface HostObjects extends Carrier {
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
  const { bootSeconds } = context.config;
  const clock = { now: context.now, bootSeconds };
  const failed = failedStarts(objects, clock);
  const wait = failed.count === 0 ? 0 : waitAfter(failed.count, bootSeconds * 1000, RETRY_CAP_MILLISECONDS);
  return {
    node,
    place: () => placeOn(node, [...pods.machines, ...pods.tasks]),
    isFull: pods.machines.filter(holdsSlot).length >= slotsOf(node),
    state: hostState(objects, failed.count, clock),
    server,
    isFree: server !== undefined && isReachable(server) && openAction(server) === undefined,
    emptySince: isEmpty(objects) ? Math.max(seenEmptySince ?? context.now, lastEnd(server)) : undefined,
    isAwaited: objects.isAwaited,
    failures: failed.count,
    retryAt: failed.at + wait,
  };
}

function isReachable({ status, metadata }: Readonly<Server>): boolean {
  return metadata.deletionTimestamp === undefined && conditionIn(status, 'Reachable')?.status === 'True';
}

/** Returns the time when the last action ended. A host whose switching off failed is not tried again at once. */
function lastEnd(server: Readonly<Server> | undefined): number {
  return Date.parse(server?.status?.lastAction?.completedAt ?? '') || 0;
}
