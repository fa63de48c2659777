/** Tells from the Server of a host whether Berth switched the host off, and when it must have started. All functions are pure. */
import type { LastAction, PowerRequest, Server } from '../../api/v1alpha1/server.ts';
import { equal } from '../../kube/mergepatch.ts';
import type { Informer } from '../../kube/informer.ts';
import { type HostReach, hostStateChanged, isReady, type PoweredHost } from './observe.ts';
import { changedHosts } from './records.ts';
import type { ConfigMap, Node } from '../../kube/core.ts';

/** Index of Servers by `spec.nodeName`. */
export const SERVERS_BY_NODE = 'node';

/** Returns the keys of a Server for the index {@link SERVERS_BY_NODE}. */
export function nodeOfServer({ spec }: Readonly<Server>): string[] {
  return spec.nodeName === undefined ? [] : [spec.nodeName];
}

/** Returns the state of the host of a Server. The result is undefined if Berth has not switched the host off, or if it has returned. */
function poweredHost({ metadata, status }: Readonly<Server>): PoweredHost | undefined {
  const { host } = status ?? {};
  if (host === undefined) {
    return undefined;
  }
  const state = host.offAt === undefined ? 'Leaving' : host.onAt === undefined ? 'Off' : 'Starting';
  return { server: metadata.name, state };
}

/**
 * Adds to the reach of a host what its Servers say. A host that Berth switched off is silent at once, although its Node can still be Ready.
 * After the host is on again, its silence counts from that time on.
 */
export function withPower(reach: HostReach, servers: readonly Readonly<Server>[]): HostReach {
  const server = servers.find(({ status }) => status?.host !== undefined);
  const powered = server && poweredHost(server);
  if (powered === undefined || powered.state === 'Leaving') {
    return { ...reach, powered };
  }
  const { offAt = '', onAt } = server?.status?.host ?? {};
  return { ...reach, powered, silentSince: Date.parse(onAt ?? offAt) };
}

/** The caches that tell about hosts. */
interface HostCaches {
  readonly nodes: Informer<Node>;
  readonly servers: Informer<Server>;
  /** The ConfigMap with the records of hosts. */
  readonly recordsMap: Informer<ConfigMap>;
}

/**
 * Calls `enqueue` with the name of a host when something changes that affects machines on it: its Node, its record or its power. The caller can
 * add a comparison of Nodes for what it alone reads.
 */
export function onHostChange(
  { nodes, servers, recordsMap }: HostCaches,
  enqueue: (nodeName: string) => void,
  hasChanged: typeof hostStateChanged = hostStateChanged,
): void {
  recordsMap.cache.onChange((change) => changedHosts(change).forEach(enqueue));
  onPowerChange(servers, enqueue);
  nodes.cache.onChange(({ type, object, previous }) => {
    if (type !== 'updated' || hasChanged(previous, object)) {
      enqueue(object.metadata.name);
    }
  });
}

/** Calls `enqueue` with the name of a Node when Berth begins to switch off its host, or when the host returns. */
function onPowerChange({ cache }: Informer<Server>, enqueue: (nodeName: string) => void): void {
  cache.onChange(({ type, object, previous }) => {
    const before = type === 'updated' ? previous?.status?.host : undefined;
    if (type === 'deleted' || !equal(before ?? {}, object.status?.host ?? {})) {
      nodeOfServer(object).forEach(enqueue);
    }
  });
}

/** Beginning of `by` in the requests of power by demand. */
export const BY_DEMAND = 'power by demand';

/** Returns true if power by demand requested the action, and no person or program did. */
export function isByDemand(action: Pick<PowerRequest, 'by'> | undefined): boolean {
  return action?.by.startsWith(BY_DEMAND) === true;
}

/** An action that runs or waits. */
type OpenAction = LastAction & { completedAt?: undefined };

/** Returns true while an action runs or waits. */
export function isOpen(action: LastAction | undefined): action is OpenAction {
  return action !== undefined && action.completedAt === undefined;
}

/** Returns the power action that is requested or runs. The result is undefined if the last action has ended. */
export function openAction({ status }: Readonly<Server>): PowerRequest | LastAction | undefined {
  const { request, lastAction } = status ?? {};
  return request ?? (isOpen(lastAction) ? lastAction : undefined);
}

/** Returns the time when the controller accepted an action, in milliseconds since the epoch. The result is undefined until then. */
export function acceptedAt(action: PowerRequest | LastAction): number | undefined {
  const text = 'acceptedAt' in action ? action.acceptedAt : undefined;
  return text === undefined ? undefined : Date.parse(text);
}

/** Returns true if the host runs, and has reported since Berth last switched it off. */
export function isUp(server: Readonly<Server> | undefined, node: Readonly<Node>): boolean {
  return isReady(node) && server?.status?.host === undefined;
}

/**
 * Returns the time until which the host must have started, in milliseconds since the epoch. The time can be over. The result is undefined
 * if the host is up, or if nobody has switched it on.
 * @param bootSeconds time in seconds that a host needs from the acceptance of its power action until it reports
 */
export function startDeadline(
  server: Readonly<Server>,
  node: Readonly<Node>,
  bootSeconds: number,
): number | undefined {
  const action = startAction(server);
  if (action === undefined || isUpAgain(server, node)) {
    return undefined;
  }
  return (acceptedAt(action) ?? Date.parse(action.requestedAt)) + bootSeconds * 1000;
}

/** Returns the action after which the host starts: one that is requested or runs, or else the last one, if the server still has power. */
function startAction(server: Readonly<Server>): PowerRequest | LastAction | undefined {
  const { lastAction, power } = server.status ?? {};
  const hasPower = lastAction?.result === 'Succeeded' && power !== 'Off';
  const action = openAction(server) ?? (hasPower ? lastAction : undefined);
  return action?.action === 'Off' ? undefined : action;
}

function isUpAgain(server: Readonly<Server>, node: Readonly<Node>): boolean {
  return isUp(server, node) && openAction(server)?.action !== 'Reboot';
}

/** Calls `changed` when a Server's host may have begun or ended to start. */
export function onStartChange({ cache }: Informer<Server>, changed: () => void): void {
  const actionOf = (server: Readonly<Server> | undefined) => [
    server && openAction(server),
    server?.status?.host,
  ];
  cache.onChange(({ object, previous }) => {
    if (!equal(actionOf(previous), actionOf(object))) {
      changed();
    }
  });
}
