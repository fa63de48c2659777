/** Finds the Pods that are bound to a host. */
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';

/** Host whose Pods are wanted. If `namespace` is set, the host sees no Pods of other namespaces. */
export interface PodScope {
  nodeName: string;
  namespace?: string | undefined;
}

/** Returns the options with which the Pods bound to a host are listed and watched. */
export function boundTo({ nodeName, namespace }: PodScope): { fieldSelector: string; namespace?: string } {
  return { fieldSelector: `spec.nodeName=${nodeName}`, ...(namespace !== undefined && { namespace }) };
}

/** Returns whether every one of these Pods still exists. The function reads the Pods from the API server. @throws ApiError */
export async function existAll(
  pods: readonly Readonly<Pod>[],
  client: KubeClient,
  scope: PodScope,
  signal: AbortSignal,
): Promise<boolean> {
  const { items } = await client.list(PODS, { ...boundTo(scope), signal });
  const there = new Set(items.map(({ metadata }) => metadata.uid));
  return pods.every(({ metadata }) => there.has(metadata.uid));
}
