/** Reads from a Pod on which host it is, and whether somebody deleted it by force. */
import type { Pod } from '../../kube/core.ts';

/** Index of Pods by the Node that they are bound to. */
export const PODS_BY_NODE = 'node';

/** Returns the keys of a Pod for the index {@link PODS_BY_NODE}. */
export function nodeOfPod({ spec }: Readonly<Pod>): string[] {
  return spec.nodeName === undefined ? [] : [spec.nodeName];
}

/** Returns true if the Pod was deleted without a grace period. Such a deletion says nothing about the machine. */
export function isForced({ metadata }: Readonly<Pod>): boolean {
  return metadata.deletionTimestamp !== undefined && metadata.deletionGracePeriodSeconds === 0;
}
