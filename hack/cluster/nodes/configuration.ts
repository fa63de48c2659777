/** Writes the configuration files of a node's programs: containerd, kubelet and kube-proxy as in a distribution. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import type { NetworkAddress } from './network.ts';

/** Socket in the `/run` of a node, which each node has for itself. */
export const CONTAINERD_SOCKET = '/run/containerd/containerd.sock';
/** Image of the container that holds a Pod's namespaces; images.ts makes it. */
export const PAUSE_IMAGE = 'localhost/berth-pause:1';
/** Folder of Debian's containernetworking-plugins. */
const NETWORK_PLUGINS = '/usr/lib/cni';

/** Writes all configuration files to the node's folder. `pki` is the folder of the cluster's keys. */
export function writeConfiguration(folder: string, node: NetworkAddress, pki: string): void {
  const write = (name: string, text: string): void =>
    writeFileSync(join(folder, name), text, { mode: 0o600 });
  write('containerd.toml', containerd(folder));
  write('10-pods.conflist', JSON.stringify(podNetwork(node)));
  write('kubelet.yaml', stringify(kubelet(node, pki)));
  write('kube-proxy.yaml', stringify(kubeProxy(node, pki)));
}

function containerd(folder: string): string {
  return `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "${PAUSE_IMAGE}"
  # Where this machine is a container itself, its root may not lower the scores.
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "${NETWORK_PLUGINS}"
  conf_dir = "${folder}"
`;
}

function podNetwork(node: NetworkAddress): object {
  return {
    cniVersion: '1.0.0',
    name: 'pods',
    plugins: [
      {
        type: 'bridge',
        bridge: 'cni0',
        isGateway: true,
        ipMasq: true,
        hairpinMode: true,
        ipam: {
          type: 'host-local',
          ranges: [[{ subnet: node.podRange }]],
          routes: [{ dst: '0.0.0.0/0' }],
        },
      },
      { type: 'portmap', capabilities: { portMappings: true } },
    ],
  };
}

function kubelet(node: NetworkAddress, pki: string): object {
  return {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    address: node.address,
    containerRuntimeEndpoint: `unix://${CONTAINERD_SOCKET}`,
    authentication: {
      anonymous: { enabled: false },
      webhook: { enabled: true },
      x509: { clientCAFile: join(pki, 'ca.crt') },
    },
    authorization: { mode: 'Webhook' },
    tlsCertFile: join(pki, `${node.name}.crt`),
    tlsPrivateKeyFile: join(pki, `${node.name}.key`),
    // The node shares its control groups and its disk with this machine.
    failCgroupV1: false,
    cgroupDriver: 'cgroupfs',
    cgroupsPerQOS: false,
    enforceNodeAllocatable: [],
    localStorageCapacityIsolation: false,
    evictionHard: { 'memory.available': '0%', 'nodefs.available': '0%', 'imagefs.available': '0%' },
    imageGCHighThresholdPercent: 100,
    oomScoreAdj: 0,
    failSwapOn: false,
    // No program here resolves names of the cluster.
    clusterDNS: [],
    resolvConf: '',
  };
}

function kubeProxy(node: NetworkAddress, pki: string): object {
  return {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode: 'nftables',
    hostnameOverride: node.name,
    clientConnection: { kubeconfig: join(pki, 'kube-proxy.kubeconfig') },
    // The limit of the kernel belongs to the machine, not to the node.
    conntrack: { maxPerCore: 0, min: 0 },
  };
}
