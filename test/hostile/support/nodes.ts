/** Nodes as a program registers them that claims to be a host. */
import { HOST_KEY, HOST_VALUE, SLOT_RESOURCE } from '../../../api/v1alpha1/names.ts';
import type { Node } from '../../../kube/core.ts';

const SLOTS = { [SLOT_RESOURCE]: '4', cpu: '8', memory: '32Gi', 'ephemeral-storage': '1Ti', pods: '110' };

/** Returns a Node as an agent registers it, with slots that it gives itself. */
export function nodeOf(
  name: string,
  labels: Record<string, string> = {},
): Partial<Node> & Pick<Node, 'metadata'> {
  const ready = { type: 'Ready', status: 'True' as const, reason: 'AgentReady', message: '' };
  return {
    metadata: { name, labels: { [HOST_KEY]: HOST_VALUE, ...labels } },
    spec: { taints: [{ key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' }] },
    status: {
      capacity: SLOTS,
      allocatable: SLOTS,
      conditions: [ready],
      addresses: [{ type: 'InternalIP', address: '127.0.0.9' }],
      nodeInfo: { architecture: 'amd64', operatingSystem: 'linux' },
    },
  };
}
