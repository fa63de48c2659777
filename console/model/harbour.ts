/** The harbour: each host is a pier, and each of its slots is a berth. */
import type { NodeItem } from '../../api/http/node.ts';
import { nodeItem } from '../../api/http/host.ts';
import { ownerOfHost } from '../../api/v1alpha1/hosts.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { Node } from '../../kube/core.ts';
import { compareTexts } from './texts.ts';

/** Machine that holds a slot. */
export interface Occupant {
  readonly kind: 'VM' | 'Emulator';
  readonly name: string;
  readonly namespace: string;
  readonly host: string;
  readonly phase: string;
}

/** A slot: free, held by a machine that the caller sees, or held by something else. */
export type Berth = Occupant | 'free' | 'other';

/**
 * State of a host. `free` and `full` hosts take VMs. A `draining` host keeps its machines and takes no more. `fenced` means that an
 * administrator has declared the host lost.
 */
export type PierState =
  | 'free'
  | 'full'
  | 'draining'
  | 'cordoned'
  | 'starting'
  | 'off'
  | 'silent'
  | 'fenced'
  | 'closed';

export interface Pier {
  readonly name: string;
  readonly namespace: string;
  readonly state: PierState;
  /** Why the host takes no VMs. It is absent if the host takes VMs. */
  readonly why: string | undefined;
  readonly slots: number;
  /** Number of slots that are not free. */
  readonly used: number;
  readonly berths: readonly Berth[];
  /** Number of berths for which the picture has no room. */
  readonly hidden: number;
  readonly architecture: string;
  readonly tags: readonly string[];
}

/** Largest number of berths in the picture of one host. x86 hosts have 16 slots, unless an administrator changes that. */
const BERTHS = 16;

const OUT_OF_SERVICE = 'node.kubernetes.io/out-of-service';

/** A host, and the facts about it that only its Node and its Server have. */
export interface Host {
  readonly item: NodeItem;
  readonly isFenced: boolean;
  /** Whether the host's server is on. It is undefined if the host has no Server, or if the caller may not read Servers. */
  readonly isPowered: boolean | undefined;
}

/**
 * Returns the hosts of Nodes. `servers` are the Servers that the caller may read. Shared hosts belong to the default namespace.
 */
export function hostsOfNodes(
  nodes: readonly Node[],
  servers: readonly Server[],
  defaultNamespace: string,
): Host[] {
  const powered = new Map(
    servers.flatMap(({ spec, status }) =>
      spec.nodeName === undefined ? [] : [[spec.nodeName, status?.power === 'On'] as const],
    ),
  );
  return nodes.map((node) => ({
    item: nodeItem(node, [], ownerOfHost(node, defaultNamespace)),
    isFenced: node.spec?.taints?.some(({ key }) => key === OUT_OF_SERVICE) ?? false,
    isPowered: powered.get(node.metadata.name),
  }));
}

/** Returns the hosts of the items of the HTTP API, which also tell how many slots are free. */
export function hostsOfItems(items: readonly NodeItem[]): Host[] {
  return items.map((item) => ({ item, isFenced: false, isPowered: undefined }));
}

/**
 * Returns the piers in the order of their names. If `knowsOthers` is true, the items of the hosts count all machines, and a held slot
 * without an occupant belongs to somebody else. Otherwise `occupants` are all machines.
 */
export function pierList(
  hosts: readonly Host[],
  occupants: readonly Occupant[],
  { knowsOthers }: { knowsOthers: boolean },
): Pier[] {
  const byHost = Map.groupBy(occupants, ({ host }) => host);
  return hosts
    .map((host) => pierOf(host, byHost.get(host.item.name) ?? [], knowsOthers))
    .toSorted((one, other) => compareTexts(one.name, other.name));
}

function pierOf(host: Host, occupants: readonly Occupant[], knowsOthers: boolean): Pier {
  const { name, namespace, slots, slotsFree, architecture = '', tags, message } = host.item;
  const used = Math.max(occupants.length, knowsOthers ? slots - slotsFree : 0);
  const own = occupants.toSorted((one, other) => compareTexts(one.name, other.name));
  const berths: Berth[] = [
    ...own,
    ...Array.from({ length: used - own.length }, () => 'other' as const),
    ...Array.from({ length: Math.max(0, slots - used) }, () => 'free' as const),
  ];
  return {
    name,
    namespace,
    state: stateOf(host, used),
    why: message,
    slots,
    used,
    berths: berths.slice(0, BERTHS),
    hidden: Math.max(0, berths.length - BERTHS),
    architecture,
    tags,
  };
}

function stateOf({ item, isFenced, isPowered }: Host, used: number): PierState {
  if (isFenced) {
    return 'fenced';
  }
  if (item.reason === undefined) {
    return used >= item.slots ? 'full' : 'free';
  }
  return item.phase === 'READY' ? stateOfClosed(item, used) : stateOfSilent(item, isPowered);
}

/** Returns the state of a host that reports and takes no VMs. */
function stateOfClosed({ reason }: NodeItem, used: number): PierState {
  if (reason === 'SwitchedOff') {
    return 'draining';
  }
  if (reason === 'Cordoned') {
    return used > 0 ? 'draining' : 'cordoned';
  }
  return 'closed';
}

/** Returns the state of a host that does not report. */
function stateOfSilent({ reason }: NodeItem, isPowered: boolean | undefined): PierState {
  if (isPowered === true) {
    return 'starting';
  }
  return reason === 'SwitchedOff' || isPowered === false ? 'off' : 'silent';
}

export interface Totals {
  readonly hosts: number;
  readonly slots: number;
  readonly used: number;
  /** Free slots of hosts that take VMs. */
  readonly free: number;
  readonly states: Readonly<Partial<Record<PierState, number>>>;
}

export function totalsOf(piers: readonly Pier[]): Totals {
  const states: Partial<Record<PierState, number>> = {};
  let [slots, used, free] = [0, 0, 0];
  for (const pier of piers) {
    states[pier.state] = (states[pier.state] ?? 0) + 1;
    slots += pier.slots;
    used += pier.used;
    free += pier.state === 'free' ? pier.slots - pier.used : 0;
  }
  return { hosts: piers.length, slots, used, free, states };
}

/** Smallest width of a pier in pixels, with the gap after it. */
const PIER_WIDTH = 196;

/** Returns the number of piers side by side in this width in pixels. */
export function columnsIn(width: number): number {
  return Math.max(1, Math.floor(width / PIER_WIDTH));
}
