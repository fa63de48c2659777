/** What the operator reads and keeps of a Node, and which changes of it matter to the VMs on it. Pure. */
import { LRUCache } from 'lru-cache';
import { HOST_MARK, HOST_VALUE, NAT_READY_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Node } from '../../kube/core.ts';
import { equal } from '../objects/mergepatch.ts';

/** Whether a Node may be given machines, work on images, and certificates. Its own claims do not count, only the mark. */
export function isHost(node: Readonly<Node> | undefined): boolean {
  return node?.metadata.labels?.[HOST_MARK] === HOST_VALUE;
}

export function isReady({ status }: Readonly<Node>): boolean {
  return status?.conditions?.some(({ type, status: value }) => type === 'Ready' && value === 'True') === true;
}

export function isOutOfService(node: Node): boolean {
  return node.spec?.taints?.some(({ key }) => key === 'node.kubernetes.io/out-of-service') ?? false;
}

/** When the host turned silent, in milliseconds since the epoch; undefined while it reports, Ready or not. */
export function silentSince(node: Node): number | undefined {
  const ready = node.status?.conditions?.find(({ type }) => type === 'Ready');
  return ready?.status === 'Unknown' && ready.lastTransitionTime !== undefined
    ? Date.parse(ready.lastTransitionTime)
    : undefined;
}

/** The Node without heartbeats and sizes of images, which only cost memory here. */
export function trimNode(node: Node): Node {
  const { images = [], conditions = [], ...status } = node.status ?? {};
  const kept = conditions
    .filter(({ type }) => type === 'Ready' || type === NAT_READY_CONDITION)
    .map(({ lastHeartbeatTime: _heartbeat, ...condition }) => condition);
  const named = images.map(({ names }) => ({ names: names.map(shared) }));
  return { ...node, status: { ...status, images: named, conditions: kept } };
}

/** A fleet uses some hundreds; a forgotten one is only kept twice. */
const NAMES_REMEMBERED = 10_000;
/** Names of images, some hundred bytes each, that many hosts have in common: kept once. */
const names = new LRUCache<string, string>({ max: NAMES_REMEMBERED });

function shared(name: string): string {
  const known = names.get(name);
  if (known === undefined) {
    names.set(name, name);
  }
  return known ?? name;
}

/** Whether the host turned silent or came back, was fenced, or moved: all that a VM's status reads of it. */
export function hostStateChanged(before: Readonly<Node> | undefined, after: Readonly<Node>): boolean {
  return (
    before === undefined ||
    !equal(before.status?.conditions, after.status?.conditions) ||
    !equal(before.spec?.taints, after.spec?.taints) ||
    !equal(before.status?.addresses, after.status?.addresses)
  );
}
