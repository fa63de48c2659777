/** Counts what the Pods on a host request, and what is free. All functions are pure. */
import { parseBytes } from '../../../api/v1alpha1/quantity.ts';
import type { Node, Pod, PodSpec } from '../../../kube/core.ts';
import { holdsSlot, suits } from '../../tasks/placement.ts';

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

/** A quantity that cannot be read counts as 0, because a host writes the quantities of its own Node. */
function amountOf(name: string, text: string): number {
  if (name === 'cpu' && text.endsWith('m')) {
    return Number(parseBytes(text.slice(0, -1)) ?? 0n);
  }
  return Number(parseBytes(text) ?? 0n) * (name === 'cpu' ? 1000 : 1);
}

function hostPorts({ containers }: PodSpec): string[] {
  const ports = containers.flatMap((container) => container.ports ?? []);
  return ports
    .filter(({ hostPort }) => hostPort !== undefined)
    .map(({ hostPort, protocol = 'TCP' }) => `${hostPort}/${protocol}`);
}
