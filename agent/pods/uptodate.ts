/** Whether a watch that was cut off has caught up. */
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';

/** Which Pods are bound to a host. */
export function boundTo(nodeName: string): string {
  return `spec.nodeName=${nodeName}`;
}

/** Whether every Pod that this host believes in is still there: the server itself is asked, not the watch. */
export async function knowsItsPods(
  client: KubeClient,
  nodeName: string,
  { informer, signal }: { informer: Informer<Pod>; signal: AbortSignal },
): Promise<boolean> {
  const { items } = await client.list(PODS, { fieldSelector: boundTo(nodeName), signal });
  const there = new Set(items.map(({ metadata }) => metadata.uid));
  return informer.cache.list().every(({ metadata }) => there.has(metadata.uid));
}
