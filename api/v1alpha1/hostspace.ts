/** Counts what Pods take of the resources and ports of a host. The operator and the runners for GitHub count in the same way. */
import { MACHINE_MEMORY_OVERHEAD_BYTES } from './machine.ts';
import { MACOS_GUEST_RESOURCE, SHARED_DISK_RESOURCE, SLOT_RESOURCE } from './names.ts';
import { divideUp, formatQuantity, parseBytes, parseQuantity } from './quantity.ts';
import type { VMSpec } from './vm.ts';

/** The fields of a Pod's spec that the functions of this file read. */
interface Requesting {
  readonly containers: readonly {
    readonly resources?: { readonly requests?: Readonly<Record<string, string>> };
    readonly ports?: readonly { readonly hostPort?: number | undefined; readonly protocol?: string }[];
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

/** Processors and memory of a guest, without the overhead of its hypervisor. */
export interface GuestSize {
  readonly cpu: number;
  readonly memoryBytes: bigint;
}

/** Returns the CPU and memory that the Pod of a machine requests for a guest of this size. */
export function sizeRequests({ cpu, memoryBytes }: GuestSize): { cpu: string; memory: string } {
  return { cpu: String(cpu), memory: formatQuantity(memoryBytes + BigInt(MACHINE_MEMORY_OVERHEAD_BYTES)) };
}

/**
 * Factor that turns `diskRequestRatio` into an integer with six decimal places. With floating-point numbers, a rounding error could make a
 * request too large.
 */
const RATIO_SCALE = 1_000_000n;

/** Unit of a disk request in bytes. Requests are whole mebibytes, because people read them. */
const MEBIBYTE = 2n ** 20n;

interface DiskSizes {
  readonly diskSizeBytes: bigint | undefined;
  readonly imageSizeBytes: bigint | undefined;
}

/** Settings of the operator for the disk that machines request. */
interface DiskRules {
  readonly defaults: { readonly diskRequest: string };
  readonly diskRequestRatio: number;
}

/**
 * Returns the quantity of disk space that the Pod of a machine requests from its host: `diskRequestRatio` multiplied by the larger of the disk's
 * size and the image's size. Kubernetes cannot change the disk request of an existing Pod.
 */
export function diskRequest(
  { diskSizeBytes, imageSizeBytes }: DiskSizes,
  { defaults, diskRequestRatio }: DiskRules,
): string {
  const known = [diskSizeBytes, imageSizeBytes].filter((size) => size !== undefined);
  const sizeBytes =
    known.length === 0
      ? parseQuantity(defaults.diskRequest)
      : known.reduce((largest, size) => (size > largest ? size : largest));
  const ratio = BigInt(Math.round(diskRequestRatio * Number(RATIO_SCALE)));
  return formatQuantity(divideUp(sizeBytes * ratio, RATIO_SCALE * MEBIBYTE) * MEBIBYTE);
}

/** Returns what the Pod of a VM requests, but for its disk. `sharesDisk` tells whether VMs use the shared disk of their host. */
export function vmRequests(
  { os, ...size }: GuestSize & { readonly os?: VMSpec['os'] },
  sharesDisk: boolean,
): Record<string, string> {
  return {
    ...sizeRequests(size),
    [SLOT_RESOURCE]: '1',
    ...(os === 'MacOS' && { [MACOS_GUEST_RESOURCE]: '1' }),
    ...(sharesDisk && { [SHARED_DISK_RESOURCE]: '1' }),
  };
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
