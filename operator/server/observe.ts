/** Reads all that one reconcile of a Server needs. Only decisions about a host with machines read from the API server. */
import { canonicalAddress } from '../../base/address.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Node, NODES, type Pod, PODS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { SERVERS_BY_NODE } from '../host/power.ts';
import { PODS_BY_NODE } from '../objects/boundpods.ts';
import type { Power, PowerError } from './drivers/driver.ts';
import { runningMachines } from './occupancy.ts';

/** Index of Servers by their addresses, in the form that {@link canonicalAddress} gives. */
export const SERVERS_BY_ADDRESS = 'address';

/** Returns the keys of a Server for the index {@link SERVERS_BY_ADDRESS}. */
export function addressesOf({ spec }: Readonly<Server>): string[] {
  return spec.addresses.map((address) => canonicalAddress(address) ?? address);
}

/** Result of one attempt to read the power: either the power, or the error. */
export interface Reading {
  /** Time before the attempt, in milliseconds since the epoch. */
  readonly at: number;
  readonly power?: Power;
  readonly error?: PowerError;
}

/** Why Berth does nothing for a Server until somebody changes it. */
export interface Problem {
  readonly reason: Reason;
  readonly message: string;
}

/** The state that one reconcile of a Server observes. The plan and the status are pure functions of it. */
export interface Observed {
  readonly server: Readonly<Server>;
  readonly problem: Problem | undefined;
  /** Last reading of the power. Its time is in milliseconds since the epoch. It is undefined until the first attempt. */
  readonly reading: Reading | undefined;
  /** Whether the controller has one command for a reboot. */
  readonly canReboot: boolean;
  /** Node of the host that the Server carries. */
  readonly node: Readonly<Node> | undefined;
  /** Number of machines that run on the host. */
  readonly machines: number;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

export interface ServerSources {
  readonly client: KubeClient;
  readonly servers: Informer<Server>;
  readonly nodes: Informer<Node>;
  /** Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
}

/** Returns the host of a Server and the number of its machines, from the caches. */
export function cachedHost(
  { nodes, pods, emulatorPods }: ServerSources,
  { spec: { nodeName } }: Readonly<Server>,
): Pick<Observed, 'node' | 'machines'> {
  if (nodeName === undefined) {
    return { node: undefined, machines: 0 };
  }
  const node = nodes.cache.get(nodeName);
  const bound = [pods, emulatorPods].flatMap(({ cache }) => cache.byIndex(PODS_BY_NODE, nodeName));
  return { node, machines: runningMachines(node, bound) };
}

/** Does the same as {@link cachedHost}, but reads from the API server, because the caches can lag. @throws ApiError */
export async function currentHost(
  { client }: Pick<ServerSources, 'client'>,
  { spec: { nodeName } }: Readonly<Server>,
): Promise<Pick<Observed, 'node' | 'machines'>> {
  if (nodeName === undefined) {
    return { node: undefined, machines: 0 };
  }
  const node = await unlessMissing(client.get(NODES, { name: nodeName }));
  const { items } = await client.list(PODS, { fieldSelector: `spec.nodeName=${nodeName}` });
  return { node, machines: runningMachines(node, items) };
}

/** Returns the older Server that has one of the addresses or the Node of this Server, as a problem. */
export function conflictOf(
  { servers }: Pick<ServerSources, 'servers'>,
  server: Readonly<Server>,
): Problem | undefined {
  for (const address of addressesOf(server)) {
    const holder = olderOf(servers.cache.byIndex(SERVERS_BY_ADDRESS, address), server);
    if (holder !== undefined) {
      const message = `spec.addresses: Server ${holder.metadata.name} already has the address ${address}`;
      return { reason: 'AddressInUse', message };
    }
  }
  const { nodeName } = server.spec;
  const holder = nodeName && olderOf(servers.cache.byIndex(SERVERS_BY_NODE, nodeName), server);
  return holder
    ? {
        reason: 'NodeTaken',
        message: `spec.nodeName: Server ${holder.metadata.name} already names Node ${nodeName}`,
      }
    : undefined;
}

function olderOf(
  holders: readonly Readonly<Server>[],
  server: Readonly<Server>,
): Readonly<Server> | undefined {
  return holders.find((holder) => holder.metadata.uid !== server.metadata.uid && isOlder(holder, server));
}

/** Orders Servers by age. The API server stores whole seconds, so names order those of one second. */
export function isOlder({ metadata: a }: Readonly<Server>, { metadata: b }: Readonly<Server>): boolean {
  const [first, second] = [a.creationTimestamp ?? '', b.creationTimestamp ?? ''];
  return first === second ? a.name < b.name : first < second;
}
