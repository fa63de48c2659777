/** A control plane with nodes of its own, on a network of their own: a cluster as people have it before Berth comes. */
import { join } from 'node:path';
import { Relay } from '../relay.ts';
import { RunningCluster } from '../cluster.ts';
import { startControlPlane } from '../controlplane.ts';
import { type ClusterState, writeState } from '../state.ts';
import { resolveNodeTools, resolveTools } from '../toolchain/toolchain.ts';
import type { Cluster } from '../types.ts';
import { makePauseImage } from './images.ts';
import { CONTROL_ADDRESS, controlNamespace, createNetwork, nodeAddresses } from './network.ts';
import { ClusterNode } from './node.ts';

export interface NodeClusterOptions {
  name: string;
  nodes: number;
  /** How long a node may be silent before it counts as lost; Kubernetes' own value is 50. */
  nodeMonitorGracePeriodSeconds?: number;
}

/** Its nodes are ended with it. */
export interface NodeCluster {
  cluster: Cluster;
  nodes: ClusterNode[];
  /** Network namespace of the control plane, from which the nodes' addresses can be reached. */
  namespace: string;
}

export async function bringUpNodes(
  options: NodeClusterOptions,
  directory: string,
  end: (cluster: RunningCluster) => Promise<void>,
): Promise<NodeCluster> {
  const { name } = options;
  const [tools, nodeTools] = [await resolveTools(), await resolveNodeTools()];
  const addresses = nodeAddresses(name, options.nodes);
  const namespace = controlNamespace(name);
  const namespaces = [namespace, ...addresses.map((one) => one.namespace)];
  const state: ClusterState = { name, provider: 'processes', tools, lasting: false, namespaces };
  // Before there is anything of it: whoever removes the folder removes them.
  writeState(directory, state);
  await createNetwork(name, addresses);
  const relays: Relay[] = [];
  await startControlPlane({
    ...options,
    directory,
    tools,
    network: {
      namespace,
      address: CONTROL_ADDRESS,
      nodes: addresses,
      expose: async (port) => {
        relays.push(await Relay.open({ namespace, direction: 'out', port, directory }));
      },
    },
  });
  const cluster = await RunningCluster.open(directory, state, async (running) => {
    for (const relay of relays) {
      await relay[Symbol.asyncDispose]();
    }
    await end(running);
  });
  // As distributions do, so that `kubectl logs` reaches the kubelets.
  const role = '--clusterrole=system:kubelet-api-admin';
  const user = 'kube-apiserver-kubelet-client';
  await cluster.kubectl(['create', 'clusterrolebinding', user, role, `--user=${user}`]);
  const pause = join(directory, 'pause.tar');
  await makePauseImage(pause);
  const nodes = await Promise.all(addresses.map((one) => ClusterNode.start(cluster, one, nodeTools)));
  for (const node of nodes) {
    await node.importImages(pause);
  }
  return { cluster, nodes, namespace };
}
