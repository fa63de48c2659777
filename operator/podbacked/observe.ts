/** Reads what is known about the host of a machine's Pod, and tells when a host that does not report counts as lost. */
import type { KubeClient } from '../../kube/client.ts';
import { type Node, NODES, type Pod } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { OperatorConfig } from '../config/config.ts';
import { type HostReach, reachOfNode, UNBOUND } from '../host/observe.ts';
import { SERVERS_BY_NODE, withPower } from '../host/power.ts';
import type { HostRecords } from '../host/records.ts';

/** Sources of what is known about a host. */
export interface HostSources {
  readonly client: KubeClient;
  readonly nodes: Informer<Node>;
  readonly servers: Informer<Server>;
  readonly hostRecords: HostRecords;
  readonly clock: () => number;
}

/** The part of the observed state that VMs and Emulators both have. Steps and status are pure functions of the observed state. */
export interface PodObserved extends HostReach {
  /** Pod of the object. It is undefined if there is none. */
  readonly pod: Pod | undefined;
  /** Returns the Nodes of all Berth hosts. */
  readonly hosts: () => readonly Node[];
  readonly config: OperatorConfig;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

/**
 * Returns the time when a host that does not report counts as lost, in milliseconds since the epoch. The result is undefined while the host
 * reports, and while it is off on purpose.
 */
export function lostAt({
  silentSince,
  powered,
  config,
}: Pick<PodObserved, 'silentSince' | 'powered' | 'config'>): number | undefined {
  return silentSince === undefined || powered?.state === 'Off'
    ? undefined
    : silentSince + config.hostLostTimeoutSeconds * 1000;
}

export function isLost(observed: Pick<PodObserved, 'silentSince' | 'powered' | 'config' | 'now'>): boolean {
  const at = lostAt(observed);
  return at !== undefined && observed.now >= at;
}

/**
 * Returns what is known about the reports of a host. If the Node is not in the cache, it is read from the API server, because the cache can
 * lag. If it does not exist there either, the host counts as silent from the stored time on, or from now on. `name` is undefined for a Pod
 * that is not bound.
 * @throws ApiError when the Node cannot be read
 */
export async function reachOf(sources: HostSources, name: string | undefined): Promise<HostReach> {
  if (name === undefined) {
    return UNBOUND;
  }
  return withPower(await reachByNode(sources, name), sources.servers.cache.byIndex(SERVERS_BY_NODE, name));
}

async function reachByNode(
  { client, nodes, hostRecords, clock }: HostSources,
  name: string,
): Promise<HostReach> {
  const node = nodes.cache.get(name) ?? (await unlessMissing(client.get(NODES, { name })));
  const isGivenUp = hostRecords.isGivenUp(name);
  if (node === undefined) {
    return { node, silentSince: hostRecords.missingSince(name) ?? clock(), isGivenUp };
  }
  const reach = reachOfNode(node);
  return { ...reach, isGivenUp: isGivenUp || reach.isGivenUp };
}
