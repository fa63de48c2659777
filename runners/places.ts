/** Counts the places that hosts have for VMs of RunnerSets, from the caches. */
import { hostsOf } from '../api/v1alpha1/hosts.ts';
import {
  emptySpace,
  hasRoom,
  type HostRequest,
  type HostSpace,
  put,
  requestOf,
  vmRequests,
} from '../api/v1alpha1/hostspace.ts';
import { DEDICATED_KEY, HOST_KEY, HOST_MARK, HOST_VALUE, TAG_LABEL_PREFIX } from '../api/v1alpha1/names.ts';
import { parsePort } from '../api/v1alpha1/ports.ts';
import { parseQuantity } from '../api/v1alpha1/quantity.ts';
import type { VMConfigSpec } from '../api/v1alpha1/vmconfig.ts';
import type { Namespace, Node, NodeSelectorRequirement, Pod } from '../kube/core.ts';
import { isOpenFor, type Placing, suits } from '../kube/scheduling.ts';

const ARCHITECTURE_LABEL = 'kubernetes.io/arch';

/** What a VM needs, as far as it is known before its deployment. Without an architecture, hosts of all architectures can take it. */
export interface Needs extends Pick<VMConfigSpec, 'architecture' | 'os' | 'placement'> {
  readonly cpu: number;
  /** Memory as a quantity. */
  readonly memory: string;
  /** Disk space that a VM requests from its host, as a quantity. */
  readonly disk: string;
  /** Reserved ports, as users write them. */
  readonly ports: readonly string[];
  /** Whether the VM uses the shared disk of its host. */
  readonly sharesDisk: boolean;
}

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

/** Pods that request the same and can run on the same hosts. */
interface Shape {
  readonly request: HostRequest;
  /** Names of the hosts that take them if they have room. */
  readonly hosts: readonly string[];
  /** Number of hosts at the beginning of the list that have no room any more, because places only become fewer. */
  full: number;
}

/** Free places on hosts. Each place that is taken makes them fewer. */
export class Places {
  readonly #spaces: ReadonlyMap<string, HostSpace>;
  /** VMs of each set. Of their hosts, first come those that suit the fewest sets. */
  readonly #sets = new Map<string, Shape>();
  readonly #lonely: ReadonlySet<string>;

  /** VMs of others that wait for a host take their places first, because they may be older than those of the sets. */
  constructor(fleet: Fleet, askers: readonly Asker[]) {
    const holders = fleet.pods.filter(
      ({ status }) => status?.phase !== 'Failed' && status?.phase !== 'Succeeded',
    );
    const bound = Map.groupBy(holders, ({ spec }) => spec.nodeName ?? '');
    const hosts = fleet.nodes.filter(isHost);
    this.#spaces = new Map(
      hosts.map((host) => [host.metadata.name, spaceOn(host, bound.get(host.metadata.name) ?? [])]),
    );
    const suiting = new Map(askers.map((asker) => [asker.key, hostsFor(asker, hosts)]));
    const suitors = Map.groupBy([...suiting.values()].flat(), (name) => name);
    const countSuitors = (name: string): number => suitors.get(name)?.length ?? 0;
    for (const { key, needs } of askers) {
      const ordered = (suiting.get(key) ?? []).toSorted(
        (one, other) => countSuitors(one) - countSuitors(other),
      );
      this.#sets.set(key, { request: requestFor(needs), hosts: ordered, full: 0 });
    }
    this.#lonely = new Set(
      askers
        .map(({ key }) => key)
        .filter((key) => suiting.get(key)?.every((name) => countSuitors(name) === 1)),
    );
    const waiting = (bound.get('') ?? []).filter((pod) => !askers.some((asker) => isOf(asker, pod)));
    this.#keepFor(
      waiting.filter(({ metadata }) => metadata.deletionTimestamp === undefined),
      hosts,
    );
  }

  /** Takes a place for one VM of a set. Returns false if no host has one. */
  take({ key }: Asker): boolean {
    const shape = this.#sets.get(key);
    return shape !== undefined && this.#takeOne(shape);
  }

  /** Returns whether no other set can use the hosts of this one. */
  isAlone({ key }: Asker): boolean {
    return this.#lonely.has(key);
  }

  /**
   * Takes a place for each waiting Pod for which a host has room. The scheduler keeps no place free for the other Pods, so they take none. First
   * come the Pods that can run on the fewest hosts, so that as many as possible find a place.
   */
  #keepFor(waiting: readonly Readonly<Pod>[], hosts: readonly Readonly<Node>[]): void {
    const alike = Map.groupBy(waiting, ({ spec }) => JSON.stringify(placingIn(spec)));
    const groups = [...alike.values()].map((pods) => ({
      pods,
      names: openHosts(pods[0]?.spec ?? {}, hosts),
    }));
    for (const { pods, names } of groups.toSorted((one, other) => one.names.length - other.names.length)) {
      const shapes = new Map<string, Shape>();
      for (const { spec } of pods) {
        const request = requestOf(spec);
        const key = JSON.stringify([[...request.amounts], request.ports]);
        const shape = shapes.get(key) ?? { request, hosts: names, full: 0 };
        shapes.set(key, shape);
        this.#takeOne(shape);
      }
    }
  }

  /** Takes a place on the first host of the shape that has room. Returns false if there is none. */
  #takeOne(shape: Shape): boolean {
    for (; shape.full < shape.hosts.length; shape.full += 1) {
      const space = this.#spaces.get(shape.hosts[shape.full] ?? '');
      if (space !== undefined && hasRoom(space, shape.request)) {
        put(space, shape.request);
        return true;
      }
    }
    return false;
  }
}

function isOf({ namespace, prefix }: Asker, { metadata }: Readonly<Pod>): boolean {
  return metadata.namespace === namespace.metadata.name && metadata.name.startsWith(prefix);
}

function isHost({ metadata }: Readonly<Node>): boolean {
  return metadata.labels?.[HOST_MARK] === HOST_VALUE;
}

/** Returns the space that the Pods of a host leave. */
function spaceOn({ status }: Readonly<Node>, pods: readonly Readonly<Pod>[]): HostSpace {
  const space = emptySpace(status?.allocatable);
  pods.forEach(({ spec }) => put(space, requestOf(spec)));
  return space;
}

/**
 * Returns the architectures of the hosts that can take VMs of the set, in alphabetical order. Hosts that are silent or cordoned count, too: they
 * come back.
 */
export function architecturesFor(
  { namespace, needs }: Pick<Asker, 'namespace' | 'needs'>,
  nodes: Fleet['nodes'],
): string[] {
  const placing = placingFor(namespace.metadata.name, needs);
  const found = hostsOf(namespace, nodes.filter(isHost))
    .filter((host) => suits(placing, host))
    .flatMap(({ metadata }) => metadata.labels?.[ARCHITECTURE_LABEL] ?? []);
  return [...new Set(found)].toSorted();
}

/** Returns the names of the hosts that take VMs of the set if they have room. */
function hostsFor({ namespace, needs }: Asker, hosts: readonly Readonly<Node>[]): string[] {
  return openHosts(placingFor(namespace.metadata.name, needs), hostsOf(namespace, hosts));
}

/** Returns what the operator writes into the Pods of such VMs, as far as it chooses among the hosts of the namespace. */
function placingFor(namespace: string, { architecture, placement }: Needs): Placing {
  const matchExpressions: NodeSelectorRequirement[] = [
    { key: HOST_MARK, operator: 'In', values: [HOST_VALUE] },
    ...(architecture === undefined
      ? []
      : [{ key: ARCHITECTURE_LABEL, operator: 'In' as const, values: [architecture] }]),
    ...(placement?.tag === undefined || placement.tagPolicy !== 'Required'
      ? []
      : [{ key: TAG_LABEL_PREFIX + placement.tag, operator: 'Exists' as const }]),
  ];
  const matchFields =
    placement?.node === undefined
      ? []
      : [{ key: 'metadata.name', operator: 'In' as const, values: [placement.node] }];
  return {
    affinity: {
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: {
          nodeSelectorTerms: [{ matchExpressions, ...(matchFields.length > 0 && { matchFields }) }],
        },
      },
    },
    tolerations: [
      { key: HOST_KEY, operator: 'Exists' },
      { key: DEDICATED_KEY, operator: 'Equal', value: namespace },
    ],
  };
}

/** Returns what a VM of a set takes, as far as it is known before its deployment. */
function requestFor({ memory, disk, ports, sharesDisk, ...needs }: Needs): HostRequest {
  const requests = {
    ...vmRequests({ ...needs, memoryBytes: parseQuantity(memory) }, sharesDisk),
    'ephemeral-storage': disk,
  };
  return requestOf({ containers: [{ resources: { requests }, ports: ports.map(parsePort) }] });
}

function placingIn({ nodeSelector, affinity, tolerations }: Placing): Placing {
  return {
    ...(nodeSelector && { nodeSelector }),
    ...(affinity && { affinity }),
    ...(tolerations && { tolerations }),
  };
}

/** Returns the names of the hosts that take such a Pod if they have room. */
function openHosts(placing: Placing, hosts: readonly Readonly<Node>[]): string[] {
  return hosts.filter((host) => isOpenFor(placing, host)).map(({ metadata }) => metadata.name);
}
