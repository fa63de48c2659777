/** Finds the Pods that are bound to a host. */
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';

/** Returns the field selector of the Pods bound to a host. */
export function boundTo(nodeName: string): string {
  return `spec.nodeName=${nodeName}`;
}

/** Returns whether every one of these Pods still exists. The function reads the Pods from the API server. @throws ApiError */
export async function existAll(
  pods: readonly Readonly<Pod>[],
  client: KubeClient,
  nodeName: string,
  signal: AbortSignal,
): Promise<boolean> {
  const { items } = await client.list(PODS, { fieldSelector: boundTo(nodeName), signal });
  const there = new Set(items.map(({ metadata }) => metadata.uid));
  return pods.every(({ metadata }) => there.has(metadata.uid));
}
