/** Starts a control plane with real nodes on a separate network. It is like the cluster of a user before the installation of Berth. */
import { Relay } from '../relay.ts';
import { Cluster } from '../cluster.ts';
import { startControlPlane } from '../controlplane.ts';
import { type ClusterState, writeState } from '../state.ts';
import { resolveNodeTools, resolveTools } from '../toolchain/toolchain.ts';
import { pauseImage } from './images.ts';
import { CONTROL_ADDRESS, controlNamespace, createNetwork, nodeAddresses } from './network.ts';
import { ClusterNode } from './node.ts';

export interface NodeClusterOptions {
  name: string;
  nodes: number;
  /** Time without a report of a node after which the node counts as lost. The default of Kubernetes is 50 s. */
  nodeMonitorGracePeriodSeconds?: number;
  /** Identity providers of users, as in `ClusterOptions`. A relay brings a provider on loopback into the namespace of the control plane. */
  authentication?: string;
}

/** Cluster with its nodes, which end with the cluster. */
export interface NodeCluster {
  cluster: Cluster;
  nodes: ClusterNode[];
  /** Network namespace of the control plane, from which the nodes' addresses can be reached. */
  namespace: string;
}

export async function bringUpNodes(
  options: NodeClusterOptions,
  directory: string,
  end: (cluster: Cluster) => Promise<void>,
): Promise<NodeCluster> {
  const { name } = options;
  const [tools, nodeTools] = [await resolveTools(), await resolveNodeTools()];
  const addresses = nodeAddresses(name, options.nodes);
  const namespace = controlNamespace(name);
  const namespaces = [namespace, ...addresses.map((one) => one.namespace)];
  const state: ClusterState = { name, provider: 'processes', tools, lasting: false, namespaces };
  // The state is written before the namespaces exist, so that they are always removed with the folder.
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
  const cluster = await Cluster.open(directory, state, async (running) => {
    for (const relay of relays) {
      await relay[Symbol.asyncDispose]();
    }
    await end(running);
  });
  // Distributions create this binding too. With it `kubectl logs` reaches the kubelets.
  const role = '--clusterrole=system:kubelet-api-admin';
  const user = 'kube-apiserver-kubelet-client';
  await cluster.kubectl(['create', 'clusterrolebinding', user, role, `--user=${user}`]);
  const pause = await pauseImage();
  const nodes = await Promise.all(addresses.map((one) => ClusterNode.start(cluster, one, nodeTools)));
  await Promise.all(nodes.map((node) => node.importImages(pause)));
  return { cluster, nodes, namespace };
}
