/**
 * Reads all that one reconcile of a Server needs, and enqueues Servers when it changes. Only decisions about a host with machines read from
 * the API server.
 */
import { canonicalAddress } from '../../base/address.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Node, NODES, type Pod, PODS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { SERVERS_BY_NODE } from '../host/power.ts';
import { hostStateChanged, PODS_BY_NODE } from '../host/observe.ts';
import type { Power, PowerError } from './drivers/driver.ts';
import { awaitedOn } from '../../api/v1alpha1/machine.ts';
import {
  CORDONED_FOR_ANNOTATION,
  EMULATOR_UID_LABEL,
  TASK_ANNOTATION,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import { desiredOf, hasEnded, isMachineOff } from '../podbacked/pod.ts';
import { holdsSlot } from '../tasks/placement.ts';
import type { Controller } from '../../kube/controller.ts';
import { equal } from '../../kube/mergepatch.ts';

/** Index of Servers by their addresses, in the form that {@link canonicalAddress} gives. */
export const SERVERS_BY_ADDRESS = 'address';

/** Returns the keys of a Server for the index {@link SERVERS_BY_ADDRESS}. */
export function addressesOf({ spec }: Readonly<Server>): string[] {
  return spec.addresses.map((address) => canonicalAddress(address) ?? address);
}

/** Result of one attempt to read the power: either the power, or the error. */
export interface PowerReading {
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
export interface ObservedServer {
  readonly server: Readonly<Server>;
  readonly problem: Problem | undefined;
  /** Last reading of the power. Its time is in milliseconds since the epoch. It is undefined until the first attempt. */
  readonly reading: PowerReading | undefined;
  /** Whether the controller has one command for a reboot. */
  readonly canReboot: boolean;
  /** Node of the host that the Server carries. */
  readonly node: Readonly<Node> | undefined;
  /** Number of machines that run on the host. */
  readonly machines: number;
  /** Number of machines on the host in any state, and of its tasks, as far as the source of the Pods has them. */
  readonly carried: number;
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

type HostOfServer = Pick<ObservedServer, 'node' | 'machines' | 'carried'>;

const NO_HOST: HostOfServer = { node: undefined, machines: 0, carried: 0 };

/** Returns the host of a Server and the number of its machines, from the caches, which have no tasks. */
export function cachedHost(sources: ServerSources, { spec: { nodeName } }: Readonly<Server>): HostOfServer {
  if (nodeName === undefined) {
    return NO_HOST;
  }
  const node = sources.nodes.cache.get(nodeName);
  return hostOf(node, podsOn(sources, nodeName));
}

/** Returns the Pods of machines on a host, from the caches. */
export function podsOn(
  { pods, emulatorPods }: Pick<ServerSources, 'pods' | 'emulatorPods'>,
  nodeName: string,
): Readonly<Pod>[] {
  return [pods, emulatorPods].flatMap(({ cache }) => cache.byIndex(PODS_BY_NODE, nodeName));
}

/** Does the same as {@link cachedHost}, but reads from the API server, because the caches can lag. @throws ApiError */
export async function currentHost(
  { client }: Pick<ServerSources, 'client'>,
  { spec: { nodeName } }: Readonly<Server>,
): Promise<HostOfServer> {
  if (nodeName === undefined) {
    return NO_HOST;
  }
  const node = await unlessMissing(client.get(NODES, { name: nodeName }));
  const { items } = await client.list(PODS, { fieldSelector: `spec.nodeName=${nodeName}` });
  return hostOf(node, items);
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

function hostOf(node: Readonly<Node> | undefined, pods: readonly Readonly<Pod>[]): HostOfServer {
  const machines = runningMachines(node, pods);
  return { node, machines, carried: Math.max(machines, pods.filter(isCarried).length) };
}

/** Returns true for the Pod of a machine in any state, because its disk can be needed, and for the Pod of a task that has not ended. */
function isCarried(pod: Readonly<Pod>): boolean {
  const { labels = {}, annotations = {} } = pod.metadata;
  const isMachine = [VM_UID_LABEL, EMULATOR_UID_LABEL].some((label) => labels[label] !== undefined);
  return isMachine || (annotations[TASK_ANNOTATION] !== undefined && holdsSlot(pod));
}

/**
 * Returns the number of machines on a host that run, are about to run, or run without a Pod because it was deleted by force. `pods` are the
 * Pods that are bound to the host.
 */
function runningMachines(node: Readonly<Node> | undefined, pods: readonly Readonly<Pod>[]): number {
  const awaited = node === undefined ? {} : awaitedOn(node);
  const present = new Set(pods.map((pod) => pod.metadata.labels?.[VM_UID_LABEL]));
  const withoutPod = Object.keys(awaited).filter((uid) => !present.has(uid)).length;
  return withoutPod + pods.filter(isRunning).length;
}

/** Returns true for the Pod of a VM that is not off, and for the Pod of an Emulator that has not ended. */
function isRunning(pod: Readonly<Pod>): boolean {
  const { labels = {} } = pod.metadata;
  if (hasEnded(pod)) {
    return false;
  }
  return labels[VM_UID_LABEL] === undefined ? labels[EMULATOR_UID_LABEL] !== undefined : !isOff(pod);
}

/** Returns true if the machine of a VM is stopped or suspended and stays so. */
function isOff(pod: Readonly<Pod>): boolean {
  return isMachineOff(pod) && desiredOf(pod)?.powerState !== 'Running';
}

/** Enqueues Servers when they, Servers with the same addresses or Node, their Nodes, or the Pods on their hosts change. */
export function enqueueServers(
  controller: Controller,
  { servers, nodes, pods, emulatorPods }: Omit<ServerSources, 'client'>,
): void {
  const enqueue = ({ metadata }: Readonly<Server>): void => controller.enqueue(metadata.name);
  const enqueueOn = (node: string): void => servers.cache.byIndex(SERVERS_BY_NODE, node).forEach(enqueue);
  servers.cache.onChange(({ type, object, previous }) => {
    enqueue(object);
    if (type !== 'updated' || previous?.metadata.generation !== object.metadata.generation) {
      for (const one of [object, previous].filter((server) => server !== undefined)) {
        addressesOf(one).forEach((address) =>
          servers.cache.byIndex(SERVERS_BY_ADDRESS, address).forEach(enqueue),
        );
        enqueueOn(one.spec.nodeName ?? '');
      }
    }
  });
  nodes.cache.onChange(({ type, object, previous }) => {
    if (type !== 'updated' || hostStateChanged(previous, object) || cordonChanged(previous, object)) {
      enqueueOn(object.metadata.name);
      const { [CORDONED_FOR_ANNOTATION]: server } = object.metadata.annotations ?? {};
      if (server !== undefined) {
        controller.enqueue(server);
      }
    }
  });
  for (const { cache } of [pods, emulatorPods]) {
    cache.onChange(({ object }) => enqueueOn(object.spec.nodeName ?? ''));
  }
}

function cordonChanged(before: Readonly<Node> | undefined, after: Readonly<Node>): boolean {
  const stateOf = ({ spec, metadata, status }: Readonly<Node>) => [
    spec?.unschedulable,
    metadata.annotations?.[CORDONED_FOR_ANNOTATION],
    status?.nodeInfo?.bootID,
  ];
  return before === undefined || !equal(stateOf(before), stateOf(after));
}
