/** Plans the repairs of the network namespaces of programs and of their connections to this host. All functions are pure. */
import type { NamespaceAttachment } from './attachments.ts';
import { type DeviceRepair, planAddressed, planWithoutIPv6 } from './deviceplan.ts';
import type { Layout } from './layout.ts';
import type { Link, Links, Route } from './observe.ts';

/** Contents of a network namespace. */
export interface Inside {
  links: Links;
  routes: readonly Route[];
  /** Whether packets that arrive on the namespace's device may be led to the loopback address. */
  leadsToLoopback: boolean;
  /** Whether the namespace contains exactly the rules that were loaded for this attachment. */
  rulesCurrent: boolean;
}

export interface NamespacesObserved {
  /** Contents of the namespaces by the names of their files. A file that holds no namespace has no contents. */
  files: ReadonlyMap<string, Inside | undefined>;
  /** Reasons why namespaces could not be read, by the names of their files. They are left as they are, because a program may use them. */
  unreadable: ReadonlyMap<string, string>;
  /** Routes of this host to addresses of namespaces. */
  routes: readonly Route[];
}

/** Repair of a namespace. `device` is the name of the namespace's file and of its device on both sides. */
export type NamespaceRepair =
  | { kind: 'createNamespace'; device: string }
  | { kind: 'removeNamespace'; device: string }
  | { kind: 'createPair'; device: string }
  | { kind: 'raiseInside'; device: string; inside: string }
  | { kind: 'disableInsideIPv6'; device: string }
  | { kind: 'addressInside'; device: string; address: string }
  | { kind: 'routeInside'; device: string }
  | { kind: 'leadToLoopback'; device: string }
  | { kind: 'loadInsideRules'; device: string }
  | { kind: 'routeToNamespace'; device: string; address: string };

const LOOPBACK = 'lo';

/** Returns the repairs of all namespaces in the order in which they must be done. */
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

/**
 * Plans the repairs of one namespace. A missing namespace is created first, and a later round plans the rest: only then is it known whether
 * a device of the former namespace is left.
 */
function planNamespace(
  layout: Layout,
  one: NamespaceAttachment,
  links: Links,
  observed: NamespacesObserved,
): (NamespaceRepair | DeviceRepair)[] {
  const { device, address } = one;
  const inside = observed.files.get(device);
  if (inside === undefined) {
    return [{ kind: 'createNamespace', device }];
  }
  const isPaired = arePaired(links.get(device), inside.links.get(device));
  const end = isPaired ? links.get(device) : undefined;
  const hasRoute = end?.up && observed.routes.some(({ dst, dev }) => dst === address && dev === device);
  return [
    ...(isPaired ? [] : [{ kind: 'createPair', device } as const]),
    ...planWithoutIPv6(device, end),
    ...planAddressed(device, `${layout.namespaces.gateway}/32`, end),
    ...planInside(layout, one, inside, isPaired),
    // The kernel removes the route when the device goes down.
    ...(hasRoute ? [] : [{ kind: 'routeToNamespace', device, address } as const]),
  ];
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

function planInside(
  layout: Layout,
  { device, address }: NamespaceAttachment,
  inside: Inside,
  isPaired: boolean,
): NamespaceRepair[] {
  // The properties of a device that is not connected to this host do not count: a new one takes its place.
  const link = isPaired ? inside.links.get(device) : undefined;
  const isUp = link?.up === true;
  const parts: [isRight: boolean, repair: NamespaceRepair][] = [
    [inside.links.get(LOOPBACK)?.up === true, { kind: 'raiseInside', device, inside: LOOPBACK }],
    [link?.ipv6 !== true, { kind: 'disableInsideIPv6', device }],
    [link?.addresses.includes(`${address}/32`) === true, { kind: 'addressInside', device, address }],
    [isUp, { kind: 'raiseInside', device, inside: device }],
    [isUp && isRouted(layout, device, inside.routes), { kind: 'routeInside', device }],
    [isPaired && inside.leadsToLoopback, { kind: 'leadToLoopback', device }],
    [inside.rulesCurrent, { kind: 'loadInsideRules', device }],
  ];
  return parts.flatMap(([isRight, repair]) => (isRight ? [] : [repair]));
}

function isRouted({ namespaces }: Layout, device: string, routes: readonly Route[]): boolean {
  const { gateway } = namespaces;
  const isThere = (dst: string, via?: string) =>
    routes.some((one) => one.dst === dst && one.gateway === via && one.dev === device);
  return isThere(gateway) && isThere('default', gateway);
}

/** Returns the `ip` commands of a repair in the namespace; empty if it has none. */
export function insideCommands({ namespaces }: Layout, repair: NamespaceRepair): string[] {
  const { device } = repair;
  switch (repair.kind) {
    case 'raiseInside':
      return [`link set ${repair.inside} up`];
    case 'addressInside':
      return [`address replace ${repair.address}/32 dev ${device}`];
    case 'routeInside':
      return [
        `route replace ${namespaces.gateway}/32 dev ${device}`,
        `route replace default via ${namespaces.gateway} dev ${device}`,
      ];
    default:
      return [];
  }
}

/** Sentences for users about the differences that the repairs remove. */
const DIFFERENCES: {
  [K in NamespaceRepair['kind']]: (repair: Extract<NamespaceRepair, { kind: K }>) => string;
} = {
  createNamespace: ({ device }) => `Network namespace ${device} was missing`,
  removeNamespace: ({ device }) => `Network namespace ${device} was left over`,
  createPair: ({ device }) => `Network namespace ${device} was not connected to this host`,
  routeToNamespace: ({ device, address }) => `Device ${device} had no route to ${address}`,
  raiseInside: ({ device, inside }) => `Device ${inside} was down in network namespace ${device}`,
  disableInsideIPv6: ({ device }) => `Device ${device} had IPv6 in its network namespace`,
  addressInside: ({ device, address }) =>
    `Device ${device} did not have the address ${address} in its network namespace`,
  routeInside: ({ device }) => `The routes in network namespace ${device} were incomplete`,
  leadToLoopback: ({ device }) => `Network namespace ${device} did not lead packets to its loopback address`,
  loadInsideRules: ({ device }) =>
    `The nftables rules in network namespace ${device} were missing or changed`,
};

/** Returns whether a repair is one of a namespace itself, and not of a device or rule of this host. */
export function isOfNamespace(repair: { kind: string }): repair is NamespaceRepair {
  return repair.kind in DIFFERENCES;
}

/** Returns a sentence for users about the difference that a repair removes. */
export function describeNamespaceDifference(repair: NamespaceRepair): string {
  return (DIFFERENCES[repair.kind] as (repair: NamespaceRepair) => string)(repair);
}
