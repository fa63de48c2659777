/** Enqueues Servers when objects on which they depend change. */
import { CORDONED_FOR_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Node } from '../../kube/core.ts';
import { equal } from '../../kube/mergepatch.ts';
import { hostStateChanged } from '../host/observe.ts';
import { SERVERS_BY_NODE } from '../host/power.ts';
import { addressesOf, SERVERS_BY_ADDRESS, type ServerSources } from './observe.ts';

/** Enqueues Servers when they, Servers with the same addresses or Node, their Nodes, or the Pods on their hosts change. */
export function enqueueServers(
  controller: Controller,
  { servers, nodes, pods, emulatorPods }: Omit<ServerSources, 'client'>,
): void {
  const enqueue = ({ metadata }: Readonly<Server>): void => controller.enqueue(metadata.name);
  const enqueueOn = (node: string): void => servers.cache.byIndex(SERVERS_BY_NODE, node).forEach(enqueue);
  servers.cache.onChange(({ type, object, previous }) => {
    enqueue(object);
    if (type !== 'updated' || previous?.metadata.generation !== object.metadata.generation) {
      for (const one of [object, previous].filter((server) => server !== undefined)) {
        addressesOf(one).forEach((address) =>
          servers.cache.byIndex(SERVERS_BY_ADDRESS, address).forEach(enqueue),
        );
        enqueueOn(one.spec.nodeName ?? '');
      }
    }
  });
  nodes.cache.onChange(({ type, object, previous }) => {
    if (type !== 'updated' || hostStateChanged(previous, object) || cordonChanged(previous, object)) {
      enqueueOn(object.metadata.name);
      const { [CORDONED_FOR_ANNOTATION]: server } = object.metadata.annotations ?? {};
      if (server !== undefined) {
        controller.enqueue(server);
      }
    }
  });
  for (const { cache } of [pods, emulatorPods]) {
    cache.onChange(({ object }) => enqueueOn(object.spec.nodeName ?? ''));
  }
}

function cordonChanged(before: Readonly<Node> | undefined, after: Readonly<Node>): boolean {
  const stateOf = ({ spec, metadata, status }: Readonly<Node>) => [
    spec?.unschedulable,
    metadata.annotations?.[CORDONED_FOR_ANNOTATION],
    status?.nodeInfo?.bootID,
  ];
  return before === undefined || !equal(stateOf(before), stateOf(after));
}
