/** Counts what the Pods on a host request and what is free, and finds the Pods that wait for it. */
import { emptySpace, hasRoom, type HostSpace, put, requestOf } from '../../api/v1alpha1/hostspace.ts';
import { CORDONED_FOR_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { suits } from '../../kube/scheduling.ts';
import { isReady } from '../host/observe.ts';
import { holdsSlot } from '../tasks/placement.ts';
import { isWaiting, PODS_WITHOUT_HOST, WITHOUT_HOST } from '../vm/triggers.ts';

/** Free space on one host. Each Pod that {@link take} puts there makes it smaller. */
export interface HostPlace extends HostSpace {
  readonly node: Readonly<Node>;
}

/** Returns the space that the bound Pods leave on a host. */
export function placeOn(node: Readonly<Node>, bound: readonly Readonly<Pod>[]): HostPlace {
  const place = { node, ...emptySpace(node.status?.allocatable) };
  bound.filter(holdsSlot).forEach(({ spec }) => put(place, requestOf(spec)));
  return place;
}

/** Puts the Pod into the first place where it can run. Returns false if there is none. */
export function take(places: readonly HostPlace[], pod: Readonly<Pod>): boolean {
  const place = places.find((candidate) => fits(candidate, pod));
  if (place !== undefined) {
    put(place, requestOf(pod.spec));
  }
  return place !== undefined;
}

/**
 * Returns the waiting Pods that get the free space on a host, in their order. A Pod that the scheduler expects on another host is left out:
 * two hosts that open at once are then not for the same Pods. A Pod that it already expects on this host keeps its space. `nodeOf` returns
 * the Node with a name.
 */
export function choose(
  place: HostPlace,
  waiting: readonly Readonly<Pod>[],
  nodeOf: (name: string) => Readonly<Node> | undefined,
): Readonly<Pod>[] {
  const named = (pod: Readonly<Pod>) => pod.status?.nominatedNodeName === place.node.metadata.name;
  const others = waiting.filter((pod) => !named(pod) || !take([place], pod));
  return others.filter((pod) => !isExpected(pod, nodeOf) && take([place], pod));
}

/** Returns true if the host that was named for the Pod can still take it. A host that Berth has cordoned is about to open if it reports. */
function isExpected({ status }: Readonly<Pod>, nodeOf: Parameters<typeof choose>[2]): boolean {
  const node = nodeOf(status?.nominatedNodeName ?? '');
  if (node === undefined || !isReady(node)) {
    return false;
  }
  return (
    node.spec?.unschedulable !== true || node.metadata.annotations?.[CORDONED_FOR_ANNOTATION] !== undefined
  );
}

/** Returns true if the host suits the Pod, and has what the Pod requests. */
export function fits(place: HostPlace, { spec }: Readonly<Pod>): boolean {
  return hasRoom(place, requestOf(spec)) && suits(spec, place.node);
}

/** Returns the Pods of VMs that the scheduler could not place, the oldest first. */
export function waitingIn({ pods }: { readonly pods: Informer<Pod> }): Readonly<Pod>[] {
  return pods.cache.byIndex(PODS_WITHOUT_HOST, WITHOUT_HOST).filter(isWaiting).toSorted(byAge);
}

function byAge({ metadata: a }: Readonly<Pod>, { metadata: b }: Readonly<Pod>): number {
  const [first, second] = [a, b].map(({ creationTimestamp = '', name }) => `${creationTimestamp}/${name}`);
  return (first ?? '') < (second ?? '') ? -1 : 1;
}
