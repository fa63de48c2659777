/** Reads the state of a host from its Node, trims Nodes for the cache, and finds changes that matter to VMs. All functions are pure. */
import { LRUCache } from 'lru-cache';
import {
  AWAITED_ANNOTATION,
  EMULATORS_CONDITION,
  NAT_READY_CONDITION,
  VERSION_SKEW_CONDITION,
} from '../../api/v1alpha1/names.ts';
import { listedImages } from '../../api/v1alpha1/reference.ts';
import { agentVersion, isTooFarApart } from '../../api/v1alpha1/version.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { equal } from '../../kube/mergepatch.ts';
import { conditionIn } from '../objects/conditions.ts';
import { isHost } from '../tasks/placement.ts';

export function isReady({ status }: Readonly<Node>): boolean {
  return conditionIn(status, 'Ready')?.status === 'True';
}

function isOutOfService(node: Node): boolean {
  return node.spec?.taints?.some(({ key }) => key === 'node.kubernetes.io/out-of-service') ?? false;
}

/** State of a host that Berth switches off or on. */
export interface PoweredHost {
  /** Name of the Server. */
  readonly server: string;
  /** `Leaving`: cordoned, and about to be switched off. `Off`: off, or being switched off. `Starting`: on again, without a report yet. */
  readonly state: 'Leaving' | 'Off' | 'Starting';
}

/** What is known about the reports of a host to which a Pod is bound. */
export interface HostReach {
  /** Node of the host. It is undefined if there is no Node at the moment, or if the Pod is not bound. */
  readonly node: Node | undefined;
  /**
   * Time when the host stopped reporting, in milliseconds since the epoch. A host without a Node is silent, too: its Node can be deleted
   * while its machines run. The field is undefined while the host reports.
   */
  readonly silentSince: number | undefined;
  /** Set while Berth switches the host off or on by its Server. A host that is off on purpose is silent, but never lost. */
  readonly powered?: PoweredHost | undefined;
  /** Whether an administrator said that the host is gone for good: with the taint out-of-service, or by giving the host up. */
  readonly isGivenUp: boolean;
}

/** Returns what a Node shows about the reports of its host. */
export function reachOfNode(node: Node): HostReach {
  return { node, silentSince: silentSince(node), isGivenUp: isOutOfService(node) };
}

/** Reach of a Pod that is not bound to a host. */
export const UNBOUND: HostReach = { node: undefined, silentSince: undefined, isGivenUp: false };

/**
 * Returns the time when the host stopped reporting, in milliseconds since the epoch. The result is undefined while the host reports, even
 * if the host is not Ready.
 */
export function silentSince(node: Node): number | undefined {
  const ready = conditionIn(node.status, 'Ready');
  return ready?.status === 'Unknown' && ready.lastTransitionTime !== undefined
    ? Date.parse(ready.lastTransitionTime)
    : undefined;
}

/**
 * Returns the time when the condition Ready of the Node last changed, in milliseconds since the epoch. It is the time of the first report
 * of the host after a silence, or of a later report that changed the condition. The result is 0 if the time is unknown.
 */
function responsiveSince(node: Node | undefined): number {
  const since = Date.parse(conditionIn(node?.status, 'Ready')?.lastTransitionTime ?? '');
  return Number.isNaN(since) ? 0 : since;
}

/**
 * Returns the end of a time limit for work on a host, in milliseconds since the epoch. `began` is the RFC 3339 time when the work began,
 * and `seconds` is the limit. The result is undefined while the host does not report. When the host reports again, the limit begins again.
 */
export function endOfLimit(
  { node, silentSince }: Pick<HostReach, 'node' | 'silentSince'>,
  began: string,
  seconds: number,
): number | undefined {
  return silentSince === undefined
    ? Math.max(Date.parse(began), responsiveSince(node)) + seconds * 1000
    : undefined;
}

/** Returns true if the agent's version is too far from this operator's version. If the host reports no version, the result is false. */
export function isTooOldOrNew({ status }: Readonly<Node>): boolean {
  const version = agentVersion(status?.nodeInfo?.kubeletVersion);
  return version !== undefined && isTooFarApart(version);
}

/** Types of Node conditions that the operator reads. */
const READ: ReadonlySet<string> = new Set([
  'Ready',
  NAT_READY_CONDITION,
  EMULATORS_CONDITION,
  VERSION_SKEW_CONDITION,
]);

/**
 * Returns the Node without heartbeats, sizes of images and unused conditions. The operator does not need these fields, and they would use
 * memory.
 */
export function trimNode(node: Node): Node {
  const { images, conditions = [], ...status } = node.status ?? {};
  const kept = conditions
    .filter(({ type }) => READ.has(type))
    .map(({ lastHeartbeatTime: _heartbeat, ...condition }) => condition);
  const named = listedImages(images).map(({ names }) => ({ names: names.map(shared) }));
  return { ...node, status: { ...status, images: named, conditions: kept } };
}

/**
 * Largest number of image names in {@link names}. A cluster has only a few hundred names. If there are more names than this limit, some of
 * them are stored once for each Node.
 */
const NAMES_REMEMBERED = 10_000;
/**
 * Cache through which all Nodes in memory share the text of an image name. It saves memory, because many hosts have the same images, and a
 * name has a few hundred bytes.
 */
const names = new LRUCache<string, string>({ max: NAMES_REMEMBERED });

function shared(name: string): string {
  const known = names.get(name);
  if (known === undefined) {
    names.set(name, name);
  }
  return known ?? name;
}

/** Returns true if a part of a host's Node changed that affects VMs: its mark, conditions, taints, addresses or awaited VMs. */
export function hostStateChanged(before: Readonly<Node> | undefined, after: Readonly<Node>): boolean {
  return before === undefined || !equal(stateOf(before), stateOf(after));
}

function stateOf(node: Readonly<Node>): unknown[] {
  const { metadata, spec, status } = node;
  const awaited = metadata.annotations?.[AWAITED_ANNOTATION];
  return [isHost(node), awaited, status?.conditions, spec?.taints, status?.addresses];
}

/** Index of Pods by the Node that they are bound to. */
export const PODS_BY_NODE = 'node';

/** Returns the keys of a Pod for the index {@link PODS_BY_NODE}. */
export function nodeOfPod({ spec }: Readonly<Pod>): string[] {
  return spec.nodeName === undefined ? [] : [spec.nodeName];
}
