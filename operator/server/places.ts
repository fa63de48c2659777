/** Counts what the Pods on a host request and what is free, and finds the Pods that wait for it. */
import { CORDONED_FOR_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Node, Pod, PodSpec } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { isReady } from '../host/observe.ts';
import { amountOf, holdsSlot, suits } from '../tasks/placement.ts';
import { isWaiting, PODS_WITHOUT_HOST, WITHOUT_HOST } from '../vm/triggers.ts';

/** Amounts of resources by name: CPU in thousandths, everything else in its own unit. */
type Amounts = ReadonlyMap<string, number>;

/** Free space on one host. Each Pod that {@link take} puts there makes it smaller. */
export interface HostSpace {
  readonly node: Readonly<Node>;
  readonly free: Map<string, number>;
  readonly ports: Set<string>;
}

/** Returns the space that the bound Pods leave on a host. */
export function placeOn(node: Readonly<Node>, bound: readonly Readonly<Pod>[]): HostSpace {
  const free = new Map(amountsIn(node.status?.allocatable ?? {}));
  const place = { node, free, ports: new Set<string>() };
  for (const { spec } of bound.filter(holdsSlot)) {
    put(place, spec);
  }
  return place;
}

/** Puts the Pod into the first place where it can run. Returns false if there is none. */
export function take(places: readonly HostSpace[], pod: Readonly<Pod>): boolean {
  const place = places.find((candidate) => fits(candidate, pod));
  if (place !== undefined) {
    put(place, pod.spec);
  }
  return place !== undefined;
}

/**
 * Returns the waiting Pods that get the free space on a host, in their order. A Pod that the scheduler expects on another host is left out:
 * two hosts that open at once are then not for the same Pods. A Pod that it already expects on this host keeps its space. `nodeOf` returns
 * the Node with a name.
 */
export function choose(
  place: HostSpace,
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
export function fits({ node, free, ports }: HostSpace, { spec }: Readonly<Pod>): boolean {
  return (
    [...requestsOf(spec)].every(([name, amount]) => amount <= (free.get(name) ?? 0)) &&
    !hostPorts(spec).some((port) => ports.has(port)) &&
    suits(spec, node)
  );
}

function put({ free, ports }: HostSpace, spec: PodSpec): void {
  for (const [name, amount] of requestsOf(spec)) {
    free.set(name, (free.get(name) ?? 0) - amount);
  }
  for (const port of hostPorts(spec)) {
    ports.add(port);
  }
}

function requestsOf({ containers }: PodSpec): Amounts {
  const total = new Map<string, number>();
  for (const { resources } of containers) {
    for (const [name, amount] of amountsIn(resources?.requests ?? {})) {
      total.set(name, (total.get(name) ?? 0) + amount);
    }
  }
  return total;
}

function amountsIn(quantities: Readonly<Record<string, string>>): Amounts {
  return new Map(Object.entries(quantities).map(([name, text]) => [name, amountOf(name, text)]));
}

function hostPorts({ containers }: PodSpec): string[] {
  const ports = containers.flatMap((container) => container.ports ?? []);
  return ports
    .filter(({ hostPort }) => hostPort !== undefined)
    .map(({ hostPort, protocol = 'TCP' }) => `${hostPort}/${protocol}`);
}

/** Returns the Pods of VMs that the scheduler could not place, the oldest first. */
export function waitingIn({ pods }: { readonly pods: Informer<Pod> }): Readonly<Pod>[] {
  return pods.cache.byIndex(PODS_WITHOUT_HOST, WITHOUT_HOST).filter(isWaiting).toSorted(byAge);
}

function byAge({ metadata: a }: Readonly<Pod>, { metadata: b }: Readonly<Pod>): number {
  const [first, second] = [a, b].map(({ creationTimestamp = '', name }) => `${creationTimestamp}/${name}`);
  return (first ?? '') < (second ?? '') ? -1 : 1;
}
