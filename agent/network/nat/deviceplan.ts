/** Plans repairs of single network devices of this host. All functions are pure. */
import type { Link } from './observe.ts';

export type DeviceRepair =
  | { kind: 'addressDevice'; device: string; address: string }
  | { kind: 'raiseDevice'; device: string }
  | { kind: 'disableIPv6'; device: string };

/**
 * Plans the repair that disables IPv6 on a device. If the host had an IPv6 address there, guests would see the host as a neighbour on their
 * link.
 */
export function planWithoutIPv6(device: string, link: Link | undefined): DeviceRepair[] {
  return link === undefined || link.ipv6 ? [{ kind: 'disableIPv6', device }] : [];
}

/** Plans the repairs that bring a device up and give it the address. The address has the form `a.b.c.d/len`. */
export function planAddressed(device: string, address: string, link: Link | undefined): DeviceRepair[] {
  const repairs: DeviceRepair[] = [];
  if (!link?.addresses.includes(address)) {
    repairs.push({ kind: 'addressDevice', device, address });
  }
  if (!link?.up) {
    repairs.push({ kind: 'raiseDevice', device });
  }
  return repairs;
}
