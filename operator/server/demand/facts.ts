/** Gathers what power by demand must know: the VMs that wait, and for each host its state and its failed starts. */
import { awaitedOn } from '../../../api/v1alpha1/machine.ts';
import type { LastAction, PowerRequest, Server } from '../../../api/v1alpha1/server.ts';
import { waitAfter } from '../../../base/backoff.ts';
import type { Job, Node, Pod } from '../../../kube/core.ts';
import type { OperatorConfig } from '../../config/config.ts';
import { acceptedAt, BY_DEMAND, isByDemand, isUp, openAction, startDeadline } from '../../host/power.ts';
import { conditionIn } from '../../objects/conditions.ts';
import { PODS_BY_NODE } from '../../host/observe.ts';
import { holdsSlot, JOBS_BY_HOST, slotsOf, isHost } from '../../tasks/placement.ts';
import { type HostPlace, placeOn } from '../places.ts';
import { CORDONED_FOR_ANNOTATION, VM_UID_LABEL } from '../../../api/v1alpha1/names.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import type { Informer } from '../../../kube/informer.ts';
import { keyOf } from '../../../kube/objects.ts';
import { isMachineOff } from '../../podbacked/pod.ts';
import { isOlder } from '../observe.ts';

/**
 * Time in milliseconds in which a controller accepts a request. A driver waits at most 10 s for one call. After this time, the request
 * delays no other one, and its host does not count as starting.
 */
const ACCEPTANCE_MILLISECONDS = 15_000;

/**
 * State of a host for this policy. `on`: it takes machines. `starting`: it will take machines soon. `off`: it can be switched on. `late`: this
 * policy switched it on, and it did not start in time. `leaving`: it is being switched off. `other`: the policy leaves it alone.
 */
export type DemandState = 'on' | 'starting' | 'off' | 'late' | 'leaving' | 'other';

interface Carrier {
  readonly node: Readonly<Node>;
  readonly server: Readonly<Server> | undefined;
}

interface Clock {
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
  readonly bootSeconds: number;
}

/** Starts in a row that this policy requested and that failed. */
interface FailedStarts {
  readonly count: number;
  /** Time of the last failure, in milliseconds since the epoch. */
  readonly at: number;
}

const NONE: FailedStarts = { count: 0, at: 0 };

/** Returns `by` of a request for a host that did not start the last `failures` times. The number is stored nowhere else. */
export function byDemand(failures: number): string {
  return failures === 0 ? BY_DEMAND : `${BY_DEMAND}, after ${failures} failed starts`;
}

function hostState(carrier: Carrier, failures: number, clock: Clock): DemandState {
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
function silentState(
  { node, server }: WithServer,
  failures: number,
  { now, bootSeconds }: Clock,
): DemandState {
  const open = openAction(server);
  const until = startDeadline(server, node, bootSeconds);
  if (until !== undefined && now < until) {
    return open !== undefined && isUnanswered(open, now) ? 'other' : 'starting';
  }
  return open === undefined ? restingState(server, failures) : 'other';
}

function restingState({ status }: Readonly<Server>, failures: number): DemandState {
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

function failedStarts({ node, server }: Carrier, clock: Clock): FailedStarts {
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

/** Longest wait in milliseconds before a host that did not start is tried again. An hour later, somebody may have repaired it. */
const RETRY_CAP_MILLISECONDS = 3_600_000;
export interface HostDemand {
  readonly node: Readonly<Node>;
  /** Counts the free space. Most decisions do not need it, and a fleet has thousands of hosts. */
  readonly place: () => HostPlace;
  /** Whether machines take all slots. This is known without {@link place}. */
  readonly isFull: boolean;
  readonly state: DemandState;
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
  readonly hosts: readonly HostDemand[];
  /** Pods of VMs that the scheduler could not place, the oldest first. */
  readonly waiting: readonly Readonly<Pod>[];
  /** Whether a request of this policy has not begun. */
  readonly isRequesting: boolean;
  readonly config: OperatorConfig['powerByDemand'];
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

/** What the caches have about one host. */
interface HostObjects extends Carrier {
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

export function hostFacts(objects: HostObjects, context: Context): HostDemand {
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

export interface DemandSources {
  readonly servers: Informer<Server>;
  readonly nodes: Informer<Node>;
  readonly vms: Informer<VM>;
  /** Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
  readonly taskPods: Informer<Pod>;
  readonly jobs: Informer<Job>;
}

/** Returns all Nodes that claim to be hosts, each with its Server and with everything that is on it. */
export function hostsIn(sources: DemandSources): Omit<HostObjects, 'seenEmptySince'>[] {
  const { nodes, vms, pods, emulatorPods, taskPods, jobs } = sources;
  const servers = serversByNode(sources);
  return nodes.cache.list().map((node) => {
    const { name } = node.metadata;
    const ofVMs = pods.cache.byIndex(PODS_BY_NODE, name);
    return {
      node,
      server: servers.get(name),
      pods: {
        machines: [...ofVMs, ...emulatorPods.cache.byIndex(PODS_BY_NODE, name)],
        tasks: taskPods.cache.byIndex(PODS_BY_NODE, name),
      },
      jobs: jobs.cache.byIndex(JOBS_BY_HOST, name),
      isAwaited: ofVMs.some((pod) => mustRunAgain(pod, vms.cache.get(keyOf(pod)))),
    };
  });
}

/**
 * Returns true if the machine of the VM is off, and the VM must run. The Pod does not tell the latter, because the operator orders no start
 * on a host that is off.
 */
function mustRunAgain(pod: Readonly<Pod>, vm: Readonly<VM> | undefined): boolean {
  const isWanted =
    vm?.metadata.uid === pod.metadata.labels?.[VM_UID_LABEL] && vm?.metadata.deletionTimestamp === undefined;
  return isMachineOff(pod) && isWanted && (vm?.spec.powerState ?? 'Running') === 'Running';
}

/** If several Servers name one Node, the oldest counts, as for all other purposes. */
function serversByNode({ servers }: Pick<DemandSources, 'servers'>): Map<string, Readonly<Server>> {
  const found = new Map<string, Readonly<Server>>();
  for (const server of servers.cache.list()) {
    const { nodeName } = server.spec;
    const other = nodeName === undefined ? undefined : found.get(nodeName);
    if (nodeName !== undefined && (other === undefined || isOlder(server, other))) {
      found.set(nodeName, server);
    }
  }
  return found;
}
