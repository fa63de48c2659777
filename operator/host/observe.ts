/** Reads the state of a host from its Node, trims Nodes for the cache, and finds changes that matter to VMs. Pure. */
import { LRUCache } from 'lru-cache';
import {
  HOST_MARK,
  HOST_VALUE,
  NAT_READY_CONDITION,
  VERSION_SKEW_CONDITION,
} from '../../api/v1alpha1/names.ts';
import { agentVersion, isTooFarApart } from '../../api/v1alpha1/version.ts';
import type { Node } from '../../kube/core.ts';
import { equal } from '../objects/mergepatch.ts';

/** Returns true if a Node may get machines, tasks for images, and certificates. Only the mark decides, not the Node's own claim. */
export function isHost(node: Readonly<Node> | undefined): boolean {
  return node?.metadata.labels?.[HOST_MARK] === HOST_VALUE;
}

export function isReady({ status }: Readonly<Node>): boolean {
  return status?.conditions?.some(({ type, status: value }) => type === 'Ready' && value === 'True') === true;
}

export function isOutOfService(node: Node): boolean {
  return node.spec?.taints?.some(({ key }) => key === 'node.kubernetes.io/out-of-service') ?? false;
}

/** Returns when the host became silent, in milliseconds since the epoch; undefined while it reports, Ready or not. */
export function silentSince(node: Node): number | undefined {
  const ready = node.status?.conditions?.find(({ type }) => type === 'Ready');
  return ready?.status === 'Unknown' && ready.lastTransitionTime !== undefined
    ? Date.parse(ready.lastTransitionTime)
    : undefined;
}

/** Reports whether the host's agent is too many releases apart from this operator. A host that tells no version is never. */
export function isTooOldOrNew({ status }: Readonly<Node>): boolean {
  const version = agentVersion(status?.nodeInfo?.kubeletVersion);
  return version !== undefined && isTooFarApart(version);
}

/** Types of conditions that the operator reads. */
const READ: ReadonlySet<string> = new Set(['Ready', NAT_READY_CONDITION, VERSION_SKEW_CONDITION]);

/** Returns the Node without heartbeats, sizes of images and unused conditions, which would only use memory. */
export function trimNode(node: Node): Node {
  const { images = [], conditions = [], ...status } = node.status ?? {};
  const kept = conditions
    .filter(({ type }) => READ.has(type))
    .map(({ lastHeartbeatTime: _heartbeat, ...condition }) => condition);
  const named = images.map(({ names }) => ({ names: names.map(shared) }));
  return { ...node, status: { ...status, images: named, conditions: kept } };
}

/** Number of image names to remember. A fleet uses some hundreds, and a forgotten name is only stored twice. */
const NAMES_REMEMBERED = 10_000;
/** Names of images, some hundred bytes each. Each name is stored once, because many hosts have the same names. */
const names = new LRUCache<string, string>({ max: NAMES_REMEMBERED });

function shared(name: string): string {
  const known = names.get(name);
  if (known === undefined) {
    names.set(name, name);
  }
  return known ?? name;
}

/**
 * Returns true if the host became silent, reports again, was fenced, or changed its addresses. A VM's status reads nothing else
 * of a host.
 */
export function hostStateChanged(before: Readonly<Node> | undefined, after: Readonly<Node>): boolean {
  return (
    before === undefined ||
    !equal(before.status?.conditions, after.status?.conditions) ||
    !equal(before.spec?.taints, after.spec?.taints) ||
    !equal(before.status?.addresses, after.status?.addresses)
  );
}
