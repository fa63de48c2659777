/** Which changes of the world concern which Nodes. */
import type { Controller } from '../../kube/controller.ts';
import type { ConfigMap, Node } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { isHost } from './observe.ts';

export interface HostWatches {
  /** Nodes that say that they are hosts. */
  readonly nodes: Informer<Node>;
  readonly approvals: Informer<ConfigMap>;
}

export function enqueueHosts(controller: Controller, { nodes, approvals }: HostWatches): void {
  nodes.cache.onChange(({ object }) => controller.enqueue(object.metadata.name));
  approvals.cache.onChange(() => {
    const unmarked = nodes.cache.list().filter((node) => !isHost(node));
    unmarked.forEach(({ metadata }) => controller.enqueue(metadata.name));
  });
}
