/** Counts the places that hosts have for VMs of a set, from the caches. All functions are pure. */
import { hostsOf } from '../api/v1alpha1/hosts.ts';
import {
  DEDICATED_KEY,
  HOST_KEY,
  HOST_MARK,
  HOST_VALUE,
  SLOT_RESOURCE,
  TAG_LABEL_PREFIX,
} from '../api/v1alpha1/names.ts';
import { parseBytes } from '../api/v1alpha1/quantity.ts';
import type { VMConfigSpec } from '../api/v1alpha1/vmconfig.ts';
import { conditionIn } from '../kube/conditions.ts';
import type { Namespace, Node, Pod, Taint } from '../kube/core.ts';

/** What a VM needs, as far as it is known before its deployment. */
export type Needs = Pick<VMConfigSpec, 'architecture' | 'cpu' | 'memory' | 'placement'>;

/** Resources that limit the number of VMs on a host. */
const RESOURCES = [SLOT_RESOURCE, 'cpu', 'memory'] as const;
type Amounts = Readonly<Record<(typeof RESOURCES)[number], number>>;

export interface Fleet {
  readonly namespace: Readonly<Namespace>;
  /** Nodes of all hosts. */
  readonly nodes: readonly Readonly<Node>[];
  /** Pods that hold or want slots: of VMs, Emulators and tasks. */
  readonly pods: readonly Readonly<Pod>[];
}

/**
 * Returns the number of VMs that can start now. VMs of others that wait for a host come first, because they may be older. `isOwn` tells
 * whether a Pod is of the set.
 */
export function countPlaces(fleet: Fleet, needs: Needs, isOwn: (pod: Readonly<Pod>) => boolean): number {
  const holders = fleet.pods.filter(
    ({ status }) => status?.phase !== 'Failed' && status?.phase !== 'Succeeded',
  );
  const bound = Map.groupBy(holders, ({ spec }) => spec.nodeName ?? '');
  const hosts = hostsOf(fleet.namespace, fleet.nodes.filter(isHost)).filter((host) =>
    takes(host, fleet, needs),
  );
  const free = hosts.map((host) => roomOn(host, bound.get(host.metadata.name) ?? [], needs));
  const waiting = (bound.get('') ?? []).filter((pod) => !isOwn(pod)).length;
  return Math.max(0, free.reduce((sum, one) => sum + one, 0) - waiting);
}

function isHost({ metadata }: Readonly<Node>): boolean {
  return metadata.labels?.[HOST_MARK] === HOST_VALUE;
}

/** Returns whether the host takes VMs with these needs if it has room. */
function takes(node: Readonly<Node>, { namespace }: Fleet, needs: Needs): boolean {
  return isOpen(node, namespace.metadata.name) && suits(node, needs);
}

/** Returns whether the host reports, and no cordon and no taint keeps VMs of the namespace away. */
function isOpen({ spec, status }: Readonly<Node>, namespace: string): boolean {
  const isPassable = ({ key, value, effect }: Taint): boolean =>
    effect === 'PreferNoSchedule' || key === HOST_KEY || (key === DEDICATED_KEY && value === namespace);
  return (
    conditionIn(status, 'Ready')?.status === 'True' &&
    spec?.unschedulable !== true &&
    (spec?.taints ?? []).every(isPassable)
  );
}

/** Returns whether the host has the architecture and the tag. */
function suits({ metadata: { labels = {} } }: Readonly<Node>, { architecture, placement }: Needs): boolean {
  const hasTag =
    placement?.tag === undefined ||
    placement.tagPolicy !== 'Required' ||
    labels[TAG_LABEL_PREFIX + placement.tag] !== undefined;
  return hasTag && (architecture === undefined || labels['kubernetes.io/arch'] === architecture);
}

/** Returns how many VMs have room on a host beside its Pods. */
function roomOn({ status }: Readonly<Node>, pods: readonly Readonly<Pod>[], needs: Needs): number {
  const all = amountsIn(status?.allocatable ?? {});
  const used = pods
    .flatMap(({ spec }) => spec.containers)
    .map(({ resources }) => amountsIn(resources?.requests ?? {}));
  const wanted: Amounts = {
    [SLOT_RESOURCE]: 1,
    cpu: (needs.cpu ?? 0) * 1000,
    memory: Number(parseBytes(String(needs.memory ?? 0)) ?? 0n),
  };
  const rooms = RESOURCES.filter((name) => wanted[name] > 0).map((name) => {
    const free = used.reduce((left, one) => left - one[name], all[name]);
    return Math.floor(free / wanted[name]);
  });
  return Math.max(0, Math.min(...rooms));
}

/** Returns the amounts of the resources: CPU in thousandths, memory in bytes. A quantity that cannot be read counts as 0. */
function amountsIn(quantities: Readonly<Record<string, string>>): Amounts {
  const cpu = quantities['cpu'] ?? '0';
  const isThousandths = cpu.endsWith('m');
  const parse = (text: string): number => Number(parseBytes(text) ?? 0n);
  return {
    [SLOT_RESOURCE]: parse(quantities[SLOT_RESOURCE] ?? '0'),
    cpu: isThousandths ? parse(cpu.slice(0, -1)) : parse(cpu) * 1000,
    memory: parse(quantities['memory'] ?? '0'),
  };
}
