/** Creates simulated hosts: Node objects that KWOK keeps alive. */
import PQueue from 'p-queue';
import type { KubeClient } from '../../kube/client.ts';
import { NODES, type Node } from '../../kube/core.ts';

export interface HostOptions {
  prefix?: string;
  /** Number for `berth.dev/slot` in capacity and allocatable. If it is undefined, the operator sets the number. */
  slots?: number | undefined;
  architecture?: 'arm64' | 'amd64';
}

/** Largest number of requests at the same time. On loopback, more requests are not faster. */
const IN_FLIGHT = 32;
const DEFAULT_SLOTS = 4;

/** Creates `count` hosts, numbered from `first`; resolves with their names. */
export async function createHosts(
  client: KubeClient,
  range: { first: number; count: number },
  options: HostOptions = {},
): Promise<string[]> {
  const prefix = options.prefix ?? 'host';
  const names = Array.from({ length: range.count }, (_, index) => `${prefix}-${range.first + index}`);
  const creations = names.map((name) => async () => await client.create(NODES, hostNode(name, options)));
  await new PQueue({ concurrency: IN_FLIGHT }).addAll(creations);
  return names;
}

function hostNode(name: string, options: HostOptions): Node {
  const slots = 'slots' in options ? options.slots : DEFAULT_SLOTS;
  const architecture = options.architecture ?? 'arm64';
  const operatingSystem = architecture === 'arm64' ? 'darwin' : 'linux';
  const resources = {
    cpu: '16',
    memory: '64Gi',
    'ephemeral-storage': '1Ti',
    pods: '110',
    ...(slots === undefined ? {} : { 'berth.dev/slot': String(slots) }),
  };
  const now = new Date().toISOString();
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      annotations: { 'kwok.x-k8s.io/node': 'fake' },
      labels: {
        'berth.dev/host': 'true',
        'berth.node-restriction.kubernetes.io/host': 'true',
        'berth.dev/simulated': 'true',
        'kubernetes.io/arch': architecture,
        'kubernetes.io/hostname': name,
      },
    },
    spec: { taints: [{ key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' }] },
    status: {
      capacity: resources,
      allocatable: resources,
      // Without a condition Ready, the node would get a taint, and Pods would wait until KWOK has seen the node.
      conditions: [
        {
          type: 'Ready',
          status: 'True',
          reason: 'KubeletReady',
          message: 'kubelet is posting ready status',
          lastHeartbeatTime: now,
          lastTransitionTime: now,
        },
      ],
      addresses: [{ type: 'InternalIP', address: '192.0.2.1' }],
      nodeInfo: nodeInfo(architecture, operatingSystem),
    },
  };
}

function nodeInfo(architecture: string, operatingSystem: string): Record<string, string> {
  const version = 'kwok';
  return {
    architecture,
    operatingSystem,
    bootID: '',
    containerRuntimeVersion: version,
    kernelVersion: version,
    kubeProxyVersion: version,
    kubeletVersion: version,
    machineID: '',
    osImage: '',
    systemUUID: '',
  };
}
