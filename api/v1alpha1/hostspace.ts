/** Counts what Pods take of the resources and ports of a host. The operator and the runners for GitHub count in the same way. */
import { parseBytes } from './quantity.ts';

/** The fields of a Pod's spec that the functions of this file read. */
interface Requesting {
  readonly containers: readonly {
    readonly resources?: { readonly requests?: Readonly<Record<string, string>> };
    readonly ports?: readonly { readonly hostPort?: number; readonly protocol?: string }[];
  }[];
}

/** Amounts of resources by name: CPU in thousandths, everything else in its own unit. */
type Amounts = ReadonlyMap<string, number>;

/** What a Pod takes of its host. The scheduler does not look at resources of which a Pod requests nothing, so each amount is more than 0. */
export interface HostRequest {
  readonly amounts: Amounts;
  /** Ports of the host, for example `8822/TCP`. */
  readonly ports: readonly string[];
}

/** Free space on one host. Each Pod that {@link put} puts there makes it smaller. */
export interface HostSpace {
  readonly free: Map<string, number>;
  readonly ports: Set<string>;
}

/** Returns the space of a host without Pods. */
export function emptySpace(allocatable: Readonly<Record<string, string>> = {}): HostSpace {
  return { free: new Map(amountsIn(allocatable)), ports: new Set() };
}

export function requestOf({ containers }: Requesting): HostRequest {
  const amounts = new Map<string, number>();
  for (const { resources } of containers) {
    for (const [name, amount] of amountsIn(resources?.requests ?? {})) {
      if (amount > 0) {
        amounts.set(name, (amounts.get(name) ?? 0) + amount);
      }
    }
  }
  const ports = containers
    .flatMap((container) => container.ports ?? [])
    .filter(({ hostPort }) => hostPort !== undefined)
    .map(({ hostPort, protocol = 'TCP' }) => `${hostPort}/${protocol}`);
  return { amounts, ports };
}

export function hasRoom({ free, ports }: HostSpace, request: HostRequest): boolean {
  return (
    [...request.amounts].every(([name, amount]) => amount <= (free.get(name) ?? 0)) &&
    !request.ports.some((port) => ports.has(port))
  );
}

/** Takes the space that a Pod requests, whether there is room or not. */
export function put({ free, ports }: HostSpace, request: HostRequest): void {
  for (const [name, amount] of request.amounts) {
    free.set(name, (free.get(name) ?? 0) - amount);
  }
  for (const port of request.ports) {
    ports.add(port);
  }
}

function amountsIn(quantities: Readonly<Record<string, string>>): [string, number][] {
  return Object.entries(quantities).map(([name, text]) => [name, amountOf(name, text)]);
}

/**
 * Returns the amount of a resource: CPU in thousandths, everything else in its own unit. A quantity that cannot be read counts as 0, because a
 * host writes the quantities of its own Node.
 */
export function amountOf(name: string, text: string): number {
  if (name === 'cpu' && text.endsWith('m')) {
    return Number(parseBytes(text.slice(0, -1)) ?? 0n);
  }
  return Number(parseBytes(text) ?? 0n) * (name === 'cpu' ? 1000 : 1);
}
