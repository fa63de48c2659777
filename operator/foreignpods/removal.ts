/**
 * Decides which Pod of another program the operator removes from a host, and when. Builds the Pod that keeps others away meanwhile. All
 * functions are pure.
 */
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { keepFields, type Unsaved } from '../../kube/objects.ts';
import type { ContainerStatus, Node, Pod } from '../../kube/core.ts';
import { conditionIn } from '../objects/conditions.ts';
import { controllerOf } from '../tasks/owner.ts';
import { HOST_KEY, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import type { OperatorConfig } from '../config/config.ts';
import { hostPodSpec } from '../tasks/placement.ts';
import { REBOOTING } from '../podbacked/build.ts';

/** Reason with which the agent of a host shows that it does not run a Pod. */
export const PARKED: Reason = 'HostRunsOnlyMachines';

/** Shortest time between two removals of Pods of one owner. The owner can replace its Pods without end, so removals must be slow. */
const SHORTEST_WAIT_MILLISECONDS = 30_000;
/** Longest time between two removals of Pods of one owner, if each replacement lands on a host again. */
const LONGEST_WAIT_MILLISECONDS = 300_000;

/** The last removal of a Pod of an owner. */
export interface PodRemoval {
  /** Time of the removal, in milliseconds since the epoch. */
  readonly at: number;
  /** Time in milliseconds until the next removal of a Pod of this owner. */
  readonly waitMilliseconds: number;
}

export type RemovalDecision =
  | { readonly kind: 'none' }
  /** `at` is the time of the next removal, in milliseconds since the epoch. */
  | { readonly kind: 'wait'; readonly at: number }
  | { readonly kind: 'remove'; readonly pod: Pod; readonly removal: PodRemoval };

/** Index of Pods that can be removed. The key is the uid of the Pod's controller. */
export const REMOVABLE_BY_OWNER = 'owner';

/**
 * Returns the keys of a Pod for the index {@link REMOVABLE_BY_OWNER}. There is no key if the Pod does not wait on a host, or if nobody would
 * create it again on another node: it has no controller, a DaemonSet made it for this node, its node made it, or it chose its node itself.
 */
export function ownerOfRemovable(pod: Readonly<Pod>): string[] {
  const owner = controllerOf(pod);
  const isForThisNode = owner === undefined || owner.kind === 'DaemonSet' || owner.kind === 'Node';
  // Only the scheduler's binding sets this condition on such a Pod.
  const isScheduled = conditionIn(pod.status, 'PodScheduled')?.status === 'True';
  return isParked(pod) && !isForThisNode && isScheduled ? [owner.uid] : [];
}

function isParked({ status }: Readonly<Pod>): boolean {
  return status?.containerStatuses?.some(isParkedContainer) === true;
}

function isParkedContainer({ state }: ContainerStatus): boolean {
  return state?.waiting?.reason === PARKED;
}

/**
 * Decides about the Pods of one owner that wait on hosts. The oldest Pod goes first. If a Pod is newer than the last removal, it probably
 * replaced the removed Pod and landed on a host again. The next wait is then twice as long.
 */
export function nextRemoval(
  pods: readonly Pod[],
  last: PodRemoval | undefined,
  now: number,
): RemovalDecision {
  const waiting = pods
    .filter(({ metadata }) => metadata.deletionTimestamp === undefined)
    .toSorted((one, other) => createdAt(one) - createdAt(other));
  const [pod] = waiting;
  if (pod === undefined) {
    return { kind: 'none' };
  }
  if (last === undefined) {
    return { kind: 'remove', pod, removal: { at: now, waitMilliseconds: SHORTEST_WAIT_MILLISECONDS } };
  }
  const at = last.at + last.waitMilliseconds;
  if (now < at) {
    return { kind: 'wait', at };
  }
  // The time of a creation has whole seconds.
  const cameBack = waiting.some((one) => createdAt(one) >= Math.floor(last.at / 1000) * 1000);
  const waitMilliseconds = cameBack
    ? Math.min(2 * last.waitMilliseconds, LONGEST_WAIT_MILLISECONDS)
    : SHORTEST_WAIT_MILLISECONDS;
  return { kind: 'remove', pod, removal: { at: now, waitMilliseconds } };
}

function createdAt({ metadata }: Readonly<Pod>): number {
  return Date.parse(metadata.creationTimestamp ?? '');
}

/** Returns the Pod with only the fields that this folder reads. Every Pod of the cluster passes this cache between its binding and its start. */
export function trimForeignPod(pod: Pod): Pod {
  const metadata = keepFields(pod.metadata, [
    'namespace',
    'name',
    'uid',
    'resourceVersion',
    'creationTimestamp',
    'deletionTimestamp',
    'ownerReferences',
  ]);
  return {
    ...pod,
    metadata,
    spec: { ...keepFields(pod.spec, ['nodeName']), containers: [] },
    status: {
      conditions: pod.status?.conditions?.filter(({ type }) => type === 'PodScheduled') ?? [],
      containerStatuses: pod.status?.containerStatuses?.filter(isParkedContainer) ?? [],
    },
  };
}

/** Value of the label {@link WORKLOAD_LABEL} of the guard. */
export const GUARD_WORKLOAD = 'guard';
const GUARD_NAME = 'berth-host-guard';

/**
 * Label that the DaemonSet controller gives its Pods. Each of these Pods is for one node, so they cannot go elsewhere. With the guard they
 * would wait for the scheduler, and nobody would see the reason that a host shows.
 */
const DAEMON_POD_LABEL = 'pod-template-generation';

/**
 * Returns the Pod that keeps Pods of other programs away from all hosts, while the operator removes such Pods. Without it, the scheduler
 * could choose a host again for each replacement, because an empty host looks better to it than a busy node.
 *
 * The scheduler obeys the anti-affinity of Pods that are already on nodes. All hosts have the same value of the label {@link HOST_KEY}, so
 * one such Pod on any host closes all hosts. It never runs: the agent only shows that its host runs no such Pod. It names its node, because
 * it needs no slot, and because the next removal must not wait for it.
 */
export function buildGuard(host: Node, config: OperatorConfig): Unsaved<Pod> {
  const { name, uid = '' } = host.metadata;
  const spec = hostPodSpec({
    placement: { dedicatedTo: '*', nodeName: name },
    tolerations: REBOOTING,
    pullSecrets: [],
    priorityClassName: config.priorityClassName,
  });
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: GUARD_NAME,
      namespace: config.namespaces.system,
      labels: { [WORKLOAD_LABEL]: GUARD_WORKLOAD },
      // With an owner, `kubectl drain` can evict the Pod. It is deleted with its Node.
      ownerReferences: [{ apiVersion: 'v1', kind: 'Node', name, uid, controller: true }],
    },
    spec: {
      ...spec,
      nodeName: name,
      terminationGracePeriodSeconds: 0,
      affinity: { ...spec.affinity, podAntiAffinity: notForeign() },
      containers: [{ name: 'guard', image: 'berth.dev/guard' }],
    },
  };
}

function notForeign() {
  const matchExpressions = [WORKLOAD_LABEL, DAEMON_POD_LABEL].map((key) => ({
    key,
    operator: 'DoesNotExist' as const,
  }));
  const term = { labelSelector: { matchExpressions }, namespaceSelector: {}, topologyKey: HOST_KEY };
  return { requiredDuringSchedulingIgnoredDuringExecution: [term] };
}
