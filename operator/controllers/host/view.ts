/** What the operator keeps of a Node, and which changes of it matter to the VMs on it. */
import { NAT_READY_CONDITION } from '../../../api/v1alpha1/names.ts';
import type { Node } from '../../../kube/core.ts';
import { equal } from '../../mergepatch.ts';

/** Without the list of images and the heartbeats, which only cost memory here. */
export function trimNode(node: Node): Node {
  const { images: _images, conditions = [], ...status } = node.status ?? {};
  const kept = conditions
    .filter(({ type }) => type === 'Ready' || type === NAT_READY_CONDITION)
    .map(({ lastHeartbeatTime: _heartbeat, ...condition }) => condition);
  return { ...node, status: { ...status, conditions: kept } };
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
