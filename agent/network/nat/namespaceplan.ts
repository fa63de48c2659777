/** Plans the repairs of the network namespaces of programs and of their connections to this host. All functions are pure. */
import type { NamespaceAttachment } from './attachments.ts';
import { type DeviceRepair, planWithoutIPv6 } from './deviceplan.ts';
import type { Layout } from './layout.ts';
import type { Link, Links, Route } from './observe.ts';

/** Contents of a network namespace. */
export interface Inside {
  links: Links;
  routes: readonly Route[];
  /** Whether the kernel accepts packets to the loopback address that arrive on the device of the network namespace. */
  leadsToLoopback: boolean;
  /** Whether the network namespace contains exactly the rules that were loaded for this attachment. */
  rulesCurrent: boolean;
}

export interface NamespacesObserved {
  /**
   * Contents of the network namespaces. The key is the name of the namespace's file. The value is undefined if no namespace is mounted on
   * the file, or if no attached program has this namespace.
   */
  files: ReadonlyMap<string, Inside | undefined>;
  /**
   * Reasons why network namespaces could not be read. The key is the name of the namespace's file. An unreadable namespace is not changed,
   * because a program might use it.
   */
  unreadable: ReadonlyMap<string, string>;
  /** Routes of this host to addresses of network namespaces. */
  routes: readonly Route[];
}

/**
 * Repair of a network namespace. `device` is the name of the namespace's file and of two connected devices: one on the host, and one in the
 * namespace. A single command configures the whole host side or the whole namespace side, because starting a command takes longer than all
 * settings together. `missing` describes the missing settings, for messages to users.
 */
export type NamespaceRepair =
  | { kind: 'createNamespace'; device: string }
  | { kind: 'removeNamespace'; device: string }
  | { kind: 'createPair'; device: string }
  | { kind: 'configureOutside'; device: string; address: string; missing: readonly string[] }
  | { kind: 'configureInside'; device: string; address: string; missing: readonly string[] }
  | { kind: 'loadInsideRules'; device: string };

const LOOPBACK = 'lo';
const NEW_NAMESPACE: Inside = { links: new Map(), routes: [], leadsToLoopback: false, rulesCurrent: false };

/** Returns the repairs of all network namespaces in the order in which they must be done. */
export function planNamespaces(
  layout: Layout,
  wanted: readonly NamespaceAttachment[],
  links: Links,
  observed: NamespacesObserved,
): (NamespaceRepair | DeviceRepair)[] {
  const devices = new Set(wanted.map(({ device }) => device));
  const strays = [...observed.files.keys()].filter((file) => !devices.has(file));
  return [
    ...strays.map((device) => ({ kind: 'removeNamespace', device }) as const),
    ...wanted
      .filter(({ device }) => !observed.unreadable.has(device))
      .flatMap((one) => planNamespace(layout, one, links, observed)),
  ];
}

/** Plans the repairs of one network namespace. If the namespace is missing, the plan also contains the repairs of its contents. */
function planNamespace(
  layout: Layout,
  { device, address }: NamespaceAttachment,
  links: Links,
  observed: NamespacesObserved,
): (NamespaceRepair | DeviceRepair)[] {
  const found = observed.files.get(device);
  const inside = found ?? NEW_NAMESPACE;
  const isPaired = arePaired(links.get(device), inside.links.get(device));
  // If the devices are not paired with each other, their properties do not matter, because new devices replace them.
  const [outer, inner] = isPaired ? [links.get(device), inside.links.get(device)] : [];
  const outerMissing = missingOutside(layout, { device, address }, outer, observed.routes);
  const innerMissing = missingInside(layout, { device, address }, inner, inside);
  return [
    ...(found === undefined ? [{ kind: 'createNamespace', device } as const] : []),
    ...(isPaired ? [] : [{ kind: 'createPair', device } as const]),
    ...planWithoutIPv6(device, outer),
    ...planSide({ kind: 'configureOutside', device, address, missing: outerMissing }),
    ...planSide({ kind: 'configureInside', device, address, missing: innerMissing }),
    ...(inside.rulesCurrent ? [] : [{ kind: 'loadInsideRules', device } as const]),
  ];
}

function planSide(repair: Extract<NamespaceRepair, { missing: readonly string[] }>): NamespaceRepair[] {
  return repair.missing.length === 0 ? [] : [repair];
}

/** Returns whether both devices are the ends of one veth pair. */
function arePaired(outside: Link | undefined, inside: Link | undefined): boolean {
  return (
    outside?.kind === 'veth' &&
    inside?.kind === 'veth' &&
    outside.peer === inside.index &&
    inside.peer === outside.index
  );
}

interface Connection {
  device: string;
  address: string;
}

function missingOutside(
  { namespaces }: Layout,
  { device, address }: Connection,
  link: Link | undefined,
  routes: readonly Route[],
): string[] {
  const isUp = link?.up === true;
  return falseIn({
    [`the address ${namespaces.gateway}/32`]: hasAddress(link, namespaces.gateway),
    'the state "up"': isUp,
    // While the device is down, the route counts as missing, because the kernel removes the route when the device goes down.
    [`the route to ${address}`]: isUp && routes.some(({ dst, dev }) => dst === address && dev === device),
  });
}

function missingInside(
  layout: Layout,
  { device, address }: Connection,
  link: Link | undefined,
  { links, routes, leadsToLoopback }: Inside,
): string[] {
  const isUp = link?.up === true;
  return falseIn({
    'an active loopback device': links.get(LOOPBACK)?.up === true,
    'a device without IPv6': link?.ipv6 !== true,
    [`the address ${address}`]: hasAddress(link, address),
    'an active device': isUp,
    'its routes': isUp && isRouted(layout, device, routes),
    'the forwarding to its loopback address': link !== undefined && leadsToLoopback,
  });
}

function falseIn(parts: Readonly<Record<string, boolean>>): string[] {
  return Object.entries(parts).flatMap(([part, isRight]) => (isRight ? [] : [part]));
}

function hasAddress(link: Link | undefined, address: string): boolean {
  return link?.addresses.includes(`${address}/32`) === true;
}

function isRouted({ namespaces }: Layout, device: string, routes: readonly Route[]): boolean {
  const { gateway } = namespaces;
  const isThere = (dst: string, via?: string) =>
    routes.some((one) => one.dst === dst && one.gateway === via && one.dev === device);
  return isThere(gateway) && isThere('default', gateway);
}

/** Returns the `ip` commands that configure the host side of a network namespace: the host's device, and the route to the namespace. */
export function outsideCommands({ namespaces }: Layout, { device, address }: Connection): string[] {
  return [
    `address replace ${namespaces.gateway}/32 dev ${device}`,
    `link set ${device} up`,
    `route replace ${address}/32 dev ${device}`,
  ];
}

/** Returns the `ip` commands that configure a network namespace. The caller must run these commands in the namespace. */
export function insideCommands({ namespaces }: Layout, { device, address }: Connection): string[] {
  return [
    `link set ${LOOPBACK} up`,
    `address replace ${address}/32 dev ${device}`,
    `link set ${device} up`,
    `route replace ${namespaces.gateway}/32 dev ${device}`,
    `route replace default via ${namespaces.gateway} dev ${device}`,
  ];
}

/** Sentences for users. Each sentence says why a repair is necessary. */
const DIFFERENCES: {
  [K in NamespaceRepair['kind']]: (repair: Extract<NamespaceRepair, { kind: K }>) => string;
} = {
  createNamespace: ({ device }) => `Network namespace ${device} was missing`,
  removeNamespace: ({ device }) => `Network namespace ${device} was left over`,
  createPair: ({ device }) => `Network namespace ${device} was not connected to this host`,
  configureOutside: ({ device, missing }) => `Device ${device} did not have ${missing.join(', ')}`,
  configureInside: ({ device, missing }) => `Network namespace ${device} did not have ${missing.join(', ')}`,
  loadInsideRules: ({ device }) =>
    `The nftables rules in network namespace ${device} were missing or changed`,
};

/** Returns whether a repair concerns a network namespace, and not a device or rule of this host. */
export function isOfNamespace(repair: { kind: string }): repair is NamespaceRepair {
  return repair.kind in DIFFERENCES;
}

/** Returns a sentence for users that says why the repair is necessary, for example that a device was missing. */
export function describeNamespaceDifference(repair: NamespaceRepair): string {
  return (DIFFERENCES[repair.kind] as (repair: NamespaceRepair) => string)(repair);
}
