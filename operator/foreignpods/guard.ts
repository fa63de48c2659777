/**
 * Builds the Pod that keeps Pods of other programs away from all hosts, while the operator removes such Pods. Without it, the scheduler
 * could choose a host again for each replacement, because an empty host looks better to it than a busy node.
 *
 * The scheduler obeys the anti-affinity of Pods that are already on nodes. All hosts have the same value of the label {@link HOST_KEY}, so
 * one such Pod on any host closes all hosts. It never runs: the agent only shows that its host runs no such Pod.
 */
import { HOST_KEY, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { hostPodSpec } from '../tasks/placement.ts';
import { REBOOTING } from '../vm/pod.ts';

/** Value of the label {@link WORKLOAD_LABEL} of the guard. */
export const GUARD_WORKLOAD = 'guard';
const GUARD_NAME = 'berth-host-guard';

/**
 * Label that the DaemonSet controller gives its Pods. Each of these Pods is for one node, so they cannot go elsewhere. With the guard they
 * would wait for the scheduler, and nobody would see the reason that a host shows.
 */
const DAEMON_POD_LABEL = 'pod-template-generation';

/** Returns the guard on this host. It names its node, because it needs no slot, and because the next removal must not wait for it. */
export function buildGuard(host: Node, config: OperatorConfig): Unsaved<Pod> {
  const { name, uid = '' } = host.metadata;
  const spec = hostPodSpec({
    placement: { dedicatedTo: '*', nodeName: name },
    tolerations: REBOOTING,
    pullSecrets: [],
    priorityClassName: config.priorityClassName,
  });
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: GUARD_NAME,
      namespace: config.namespaces.system,
      labels: { [WORKLOAD_LABEL]: GUARD_WORKLOAD },
      // With an owner, `kubectl drain` can evict the Pod. It is deleted with its Node.
      ownerReferences: [{ apiVersion: 'v1', kind: 'Node', name, uid, controller: true }],
    },
    spec: {
      ...spec,
      nodeName: name,
      terminationGracePeriodSeconds: 0,
      affinity: { ...spec.affinity, podAntiAffinity: notForeign() },
      containers: [{ name: 'guard', image: 'berth.dev/guard' }],
    },
  };
}

function notForeign() {
  const matchExpressions = [WORKLOAD_LABEL, DAEMON_POD_LABEL].map((key) => ({
    key,
    operator: 'DoesNotExist' as const,
  }));
  const term = { labelSelector: { matchExpressions }, namespaceSelector: {}, topologyKey: HOST_KEY };
  return { requiredDuringSchedulingIgnoredDuringExecution: [term] };
}
