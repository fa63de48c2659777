/** Plans the repairs that bring the NAT network from its actual to its wanted state. All functions are pure. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Attachment, WantedAttachments } from './attachments.ts';
import {
  type DeviceRepair,
  type Link,
  type Links,
  planAddressed,
  planWithoutIPv6,
  type Route,
} from './devices.ts';
import { overlaps, parseSubnet, formatSubnet } from './ipv4.ts';
import type { NatLayout } from './layout.ts';
import {
  describeNamespaceDifference,
  isOfNamespace,
  type NamespaceRepair,
  type NamespacesObserved,
  outsideCommands,
  planNamespaces,
} from './namespaces.ts';

export interface ObservedNetwork {
  links: Links;
  forwarding: boolean;
  /** Whether this process has opened sockets in both ends of the probe, which tests the network with packets. */
  probeEnds: boolean;
  /** Whether Berth's nftables tables still contain exactly the rules that the agent loaded for these attachments. */
  rulesCurrent: boolean;
  dnsmasqRuns: boolean;
  /** Whether dnsmasq's list contains exactly the attached machines. */
  dnsmasqKnows: boolean;
  /** Whether this process listens for guests that ask for their metadata. */
  metadataListens: boolean;
  namespaces: NamespacesObserved;
  /** Routes of this host to addresses of guests. */
  guestRoutes: readonly Route[];
}

export type Repair =
  | DeviceRepair
  | NamespaceRepair
  | { kind: 'removeDevice'; device: string }
  | { kind: 'createBridge' }
  | { kind: 'routeGuests' }
  | { kind: 'createTap'; device: string; owner: Attachment['owner'] }
  | { kind: 'connectPort'; device: string }
  | { kind: 'rebuildProbe' }
  | { kind: 'loadRules' }
  | { kind: 'enableForwarding' }
  | { kind: 'informDnsmasq' }
  | { kind: 'startDnsmasq' }
  | { kind: 'openMetadata' };

/** Returns the kind that a device with this name must have; undefined if Berth uses no device with such a name. */
function kindOf({ bridge, probe, tapPrefix, namespaces }: NatLayout, name: string): string | undefined {
  if (name === bridge) {
    return 'bridge';
  }
  if (name === probe.innerPort || name === probe.outerPort || name.startsWith(namespaces.prefix)) {
    return 'veth';
  }
  return name.startsWith(tapPrefix) ? 'tun' : undefined;
}

/** Returns the names of Berth's devices. */
export function ownDevices(layout: NatLayout, links: Links): string[] {
  return [...links].flatMap(([name, link]) => (link.kind === kindOf(layout, name) ? [name] : []));
}

/** Returns messages about devices of other programs that have a name which Berth needs for its own device. The key is the device's name. */
export function foreignDevices(layout: NatLayout, links: Links): Map<string, string> {
  const faults = new Map<string, string>();
  for (const [name, { kind }] of links) {
    const own = kindOf(layout, name);
    if (own !== undefined && own !== kind) {
      const is = `Device ${name} is of kind "${kind === '' ? 'physical' : kind}"`;
      const needs = `the network needs this name for a device of kind "${own}"`;
      faults.set(name, `${is}, but ${needs}; rename or delete the device`);
    }
  }
  return faults;
}

/** Returns the devices that all machines need. */
export function sharedDevices({ bridge, probe }: NatLayout): string[] {
  return [bridge, probe.innerPort, probe.outerPort];
}

/**
 * Checks that no device of another program has the name of a shared device, or of the device `own`.
 *
 * @throws ReasonedError `NetworkUnavailable` when another program has such a device.
 */
export function requireOwnDevices(layout: NatLayout, links: Links, ...own: string[]): void {
  const foreign = foreignDevices(layout, links);
  const faults = [...sharedDevices(layout), ...own].flatMap((device) => foreign.get(device) ?? []);
  if (faults.length > 0) {
    throw new ReasonedError('NetworkUnavailable', faults.join('; '));
  }
}

/** Returns the devices that a repair changes or uses. */
function devicesOf({ bridge, probe }: NatLayout, repair: Repair): string[] {
  switch (repair.kind) {
    case 'createBridge':
    case 'routeGuests':
    case 'startDnsmasq':
    case 'openMetadata':
      return [bridge];
    case 'connectPort':
      return [bridge, repair.device];
    case 'rebuildProbe':
      return [probe.innerPort, probe.outerPort];
    default:
      return 'device' in repair ? [repair.device] : [];
  }
}

/** Returns whether one of the routes leads to the bridge for all guests. */
function isSubnetRouted({ bridge, subnet }: NatLayout, routes: readonly Route[]): boolean {
  return routes.some(({ dst, dev }) => dst === formatSubnet(subnet) && dev === bridge);
}

function planBridge(layout: NatLayout, { links, guestRoutes }: ObservedNetwork): Repair[] {
  const bridge = links.get(layout.bridge);
  const repairs: Repair[] = bridge ? [] : [{ kind: 'createBridge' }];
  const addressed = planAddressed(layout.bridge, `${layout.gateway}/${layout.subnet.prefix}`, bridge);
  // When the bridge gets its address or comes up, the kernel adds the route.
  const isRouted = addressed.length > 0 || isSubnetRouted(layout, guestRoutes);
  return [
    ...repairs,
    ...planWithoutIPv6(layout.bridge, bridge),
    ...addressed,
    ...(isRouted ? [] : [{ kind: 'routeGuests' } as const]),
  ];
}

/** Plans the repairs that make a device a port of the bridge, and isolate this port from the bridge's other ports. */
function planPort(layout: NatLayout, device: string, link: Link | undefined): Repair[] {
  const repairs: Repair[] = [];
  if (link?.master !== layout.bridge || !link.isolated) {
    repairs.push({ kind: 'connectPort', device });
  }
  if (!link?.up) {
    repairs.push({ kind: 'raiseDevice', device });
  }
  return repairs;
}

function planTap(layout: NatLayout, attachment: Attachment, links: Links): Repair[] {
  const device = attachment.tap;
  const tap = links.get(device);
  const repairs: Repair[] = tap ? [] : [{ kind: 'createTap', device, owner: attachment.owner }];
  return [...repairs, ...planWithoutIPv6(device, tap), ...planPort(layout, device, tap)];
}

function planProbe(layout: NatLayout, observed: ObservedNetwork): Repair[] {
  const { links } = observed;
  const { innerPort, outerPort, outerGateway, outerSubnet } = layout.probe;
  const inner = links.get(innerPort);
  const outer = links.get(outerPort);
  if (!observed.probeEnds || inner?.kind !== 'veth' || outer?.kind !== 'veth') {
    return [{ kind: 'rebuildProbe' }];
  }
  return [
    ...planPort(layout, innerPort, inner),
    ...planAddressed(outerPort, `${outerGateway}/${outerSubnet.prefix}`, outer),
  ];
}

function planStrays(layout: NatLayout, { machines, namespaces }: WantedAttachments, links: Links): Repair[] {
  const wanted = new Set([...machines.map((one) => one.tap), ...namespaces.map((one) => one.device)]);
  const prefixes = [layout.tapPrefix, layout.namespaces.prefix];
  const isOurs = (name: string): boolean => prefixes.some((prefix) => name.startsWith(prefix));
  const strays = [...links.keys()].filter((name) => isOurs(name) && !wanted.has(name));
  return strays.map((device) => ({ kind: 'removeDevice', device }));
}

/**
 * Returns the repairs in the order in which they must be done; empty if no repair is necessary. No repair changes a device of another
 * program.
 */
export function planRepairs(
  layout: NatLayout,
  wanted: WantedAttachments,
  observed: ObservedNetwork,
): Repair[] {
  const { links } = observed;
  const repairs: Repair[] = [
    ...planStrays(layout, wanted, links),
    ...planBridge(layout, observed),
    ...wanted.machines.flatMap((one) => planTap(layout, one, links)),
    ...planProbe(layout, observed),
    ...planNamespaces(layout, wanted.namespaces, links, observed.namespaces),
  ];
  if (!observed.metadataListens) {
    repairs.push({ kind: 'openMetadata' });
  }
  if (!observed.rulesCurrent) {
    repairs.push({ kind: 'loadRules' });
  }
  if (!observed.forwarding) {
    repairs.push({ kind: 'enableForwarding' });
  }
  if (!observed.dnsmasqKnows) {
    repairs.push({ kind: 'informDnsmasq' });
  }
  if (!observed.dnsmasqRuns) {
    repairs.push({ kind: 'startDnsmasq' });
  }
  const foreign = foreignDevices(layout, links);
  return repairs.filter((repair) => !devicesOf(layout, repair).some((device) => foreign.has(device)));
}

/** Returns the `ip` commands of a repair; empty if the repair does not use `ip`. */
export function ipCommands(layout: NatLayout, repair: Repair): string[] {
  switch (repair.kind) {
    case 'createBridge':
      return [`link add name ${layout.bridge} address ${layout.bridgeMac} type bridge`];
    case 'routeGuests':
      return [`route replace ${formatSubnet(layout.subnet)} dev ${layout.bridge} src ${layout.gateway}`];
    case 'removeDevice':
      return [`link delete ${repair.device}`];
    case 'addressDevice':
      return [`address replace ${repair.address} dev ${repair.device}`];
    case 'raiseDevice':
      return [`link set ${repair.device} up`];
    case 'createTap': {
      const owner = repair.owner ? ` user ${repair.owner.uid} group ${repair.owner.gid}` : '';
      return [`tuntap add dev ${repair.device} mode tap${owner}`];
    }
    case 'connectPort':
      return [
        `link set ${repair.device} master ${layout.bridge}`,
        `link set ${repair.device} type bridge_slave isolated on`,
      ];
    case 'configureOutside':
      return outsideCommands(layout, repair);
    default:
      return [];
  }
}

/** Returns a sentence for users that says why the repair is necessary, for example that a device was missing. */
export function describeDifference(layout: NatLayout, repair: Repair): string {
  switch (repair.kind) {
    case 'removeDevice':
      return `Device ${repair.device} was left over`;
    case 'createBridge':
      return `Bridge ${layout.bridge} was missing`;
    case 'addressDevice':
      return `Device ${repair.device} did not have the address ${repair.address}`;
    case 'raiseDevice':
      return `Device ${repair.device} was down`;
    case 'createTap':
      return `Tap ${repair.device} was missing`;
    case 'connectPort':
      return `Device ${repair.device} was not connected to ${layout.bridge} as an isolated port`;
    case 'disableIPv6':
      return `Device ${repair.device} had IPv6`;
    default:
      return isOfNamespace(repair) ? describeNamespaceDifference(repair) : DIFFERENCES[repair.kind];
  }
}

const DIFFERENCES = {
  routeGuests: 'The route to the guests was missing',
  rebuildProbe: 'The network probe was incomplete',
  loadRules: 'The nftables rules were missing or changed',
  enableForwarding: 'IPv4 forwarding was off',
  informDnsmasq:
    'The program dnsmasq did not have the current list of machines, or of the DNS servers of the host',
  startDnsmasq: 'The program dnsmasq was not running',
  openMetadata: 'The metadata service for guests was not running',
} as const;

/**
 * Returns a message if the network of another device overlaps a network of Berth. Such an overlap is a fault, because the host cannot route
 * an address that is in both networks.
 */
export function findOverlap(layout: NatLayout, links: Links): string | undefined {
  const ours = [
    { setting: 'network.subnet', device: layout.bridge, subnet: layout.subnet },
    { setting: 'network.probeSubnet', device: layout.probe.outerPort, subnet: layout.probe.outerSubnet },
  ];
  for (const [name, link] of links) {
    for (const { setting, device, subnet } of ours) {
      const clash = link.addresses.find((one) => name !== device && overlapsSubnet(subnet, one));
      if (clash !== undefined) {
        const both = `${setting} (${formatSubnet(subnet)}) overlaps ${clash} on device ${name}`;
        return `The setting ${both}; choose a network that this host does not use`;
      }
    }
  }
  return undefined;
}

function overlapsSubnet(subnet: NatLayout['subnet'], address: string): boolean {
  const [host = '', length = '32'] = address.split('/');
  const prefix = Math.min(Number(length), 28);
  return overlaps(subnet, parseSubnet(`${host}/${Math.max(prefix, 8)}`));
}
