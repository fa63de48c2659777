/** Counts the places that hosts have for VMs of RunnerSets, from the caches. */
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
const NOTHING: Amounts = { [SLOT_RESOURCE]: 0, cpu: 0, memory: 0 };

export interface Fleet {
  /** Nodes of all hosts. */
  readonly nodes: readonly Readonly<Node>[];
  /** Pods that hold or want slots: of VMs, Emulators and tasks. */
  readonly pods: readonly Readonly<Pod>[];
}

/** A set that asks for places. */
export interface Asker {
  readonly key: string;
  readonly namespace: Readonly<Namespace>;
  /** Beginning of the names of its VMs. */
  readonly prefix: string;
  readonly needs: Needs;
}

/** Free places on hosts. Each place that is taken makes them fewer. */
export class Places {
  readonly #free: Map<string, Amounts>;
  /** Names of the hosts that take the VMs of each set. First come those that suit the fewest sets. */
  readonly #hosts = new Map<string, readonly string[]>();
  /** What one VM of each set takes. */
  readonly #wanted: ReadonlyMap<string, Amounts>;
  /** Number of hosts at the beginning of the list of a set that have no place for it any more, because places only become fewer. */
  readonly #full = new Map<string, number>();
  readonly #lonely: ReadonlySet<string>;

  /** VMs of others that wait for a host take their places first, because they may be older than those of the sets. */
  constructor(fleet: Fleet, askers: readonly Asker[]) {
    const holders = fleet.pods.filter(
      ({ status }) => status?.phase !== 'Failed' && status?.phase !== 'Succeeded',
    );
    const bound = Map.groupBy(holders, ({ spec }) => spec.nodeName ?? '');
    const hosts = fleet.nodes.filter(isHost);
    this.#free = new Map(
      hosts.map((host) => [host.metadata.name, roomOn(host, bound.get(host.metadata.name) ?? [])]),
    );
    const namespaces = new Map(askers.map(({ namespace }) => [namespace.metadata.name, namespace]));
    const open = new Map([...namespaces].map(([name, namespace]) => [name, openHosts(namespace, hosts)]));
    const suiting = new Map(
      askers.map(({ key, namespace, needs }) => [
        key,
        suitingHosts(open.get(namespace.metadata.name) ?? [], needs),
      ]),
    );
    this.#wanted = new Map(askers.map(({ key, needs }) => [key, amountsOf(needs)]));
    const suitors = Map.groupBy([...suiting.values()].flat(), (name) => name);
    const countSuitors = (name: string): number => suitors.get(name)?.length ?? 0;
    for (const [key, names] of suiting) {
      const ordered = names.toSorted((one, other) => countSuitors(one) - countSuitors(other));
      this.#hosts.set(key, ordered);
    }
    this.#lonely = new Set(
      askers
        .map(({ key }) => key)
        .filter((key) => suiting.get(key)?.every((name) => countSuitors(name) === 1)),
    );
    const waiting = (bound.get('') ?? []).filter((pod) => !askers.some((asker) => isOf(asker, pod)));
    const all = [...this.#free.keys()].toSorted();
    waiting.forEach(({ spec }) => this.#takeOn(all, requestsOf(spec)));
  }

  /** Takes a place for one VM of a set. Returns false if no host has one. */
  take({ key }: Asker): boolean {
    const [hosts = [], wanted = NOTHING] = [this.#hosts.get(key), this.#wanted.get(key)];
    const at = this.#takeOn(hosts, wanted, this.#full.get(key));
    this.#full.set(key, at);
    return at < hosts.length;
  }

  /** Returns whether no other set can use the hosts of this one. */
  isAlone({ key }: Asker): boolean {
    return this.#lonely.has(key);
  }

  /** Takes a place on the first host that has one, from a position on. Returns the position of the host, or the end if there is none. */
  #takeOn(names: readonly string[], wanted: Amounts, from = 0): number {
    for (let at = from; at < names.length; at += 1) {
      const name = names[at] ?? '';
      const free = this.#free.get(name);
      if (free !== undefined && RESOURCES.every((one) => wanted[one] <= 0 || free[one] >= wanted[one])) {
        this.#free.set(name, minus(free, wanted));
        return at;
      }
    }
    return names.length;
  }
}

function isOf({ namespace, prefix }: Asker, { metadata }: Readonly<Pod>): boolean {
  return metadata.namespace === namespace.metadata.name && metadata.name.startsWith(prefix);
}

/** Returns the hosts that take VMs of the namespace if they have room. */
function openHosts(namespace: Readonly<Namespace>, hosts: readonly Readonly<Node>[]): Readonly<Node>[] {
  return hostsOf(namespace, hosts).filter((host) => isOpen(host, namespace.metadata.name));
}

/** Returns the names of the hosts that have what VMs need, whether they have room or not. */
function suitingHosts(hosts: readonly Readonly<Node>[], needs: Needs): string[] {
  return hosts.filter((host) => suits(host, needs)).map(({ metadata }) => metadata.name);
}

function isHost({ metadata }: Readonly<Node>): boolean {
  return metadata.labels?.[HOST_MARK] === HOST_VALUE;
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

/** Returns what the Pods of a host leave of its resources. */
function roomOn({ status }: Readonly<Node>, pods: readonly Readonly<Pod>[]): Amounts {
  return pods.reduce((left, { spec }) => minus(left, requestsOf(spec)), amountsIn(status?.allocatable ?? {}));
}

function requestsOf({ containers }: Pod['spec']): Amounts {
  const requests = containers.map(({ resources }) => amountsIn(resources?.requests ?? {}));
  return requests.reduce((sum, one) => minus(sum, one, -1), NOTHING);
}

/** Returns what a VM of a set takes, as far as it is known before its deployment. */
function amountsOf({ cpu = 0, memory = 0 }: Needs): Amounts {
  return {
    [SLOT_RESOURCE]: 1,
    cpu: cpu * 1000,
    memory: Number(parseBytes(String(memory)) ?? 0n),
  };
}

function minus(one: Amounts, other: Amounts, times = 1): Amounts {
  return {
    [SLOT_RESOURCE]: one[SLOT_RESOURCE] - times * other[SLOT_RESOURCE],
    cpu: one.cpu - times * other.cpu,
    memory: one.memory - times * other.memory,
  };
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
