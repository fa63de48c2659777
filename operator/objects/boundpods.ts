/** Reads from a Pod on which host it is. */
import type { Pod } from '../../kube/core.ts';

/** Index of Pods by the Node that they are bound to. */
export const PODS_BY_NODE = 'node';

/** Returns the keys of a Pod for the index {@link PODS_BY_NODE}. */
export function nodeOfPod({ spec }: Readonly<Pod>): string[] {
  return spec.nodeName === undefined ? [] : [spec.nodeName];
}
