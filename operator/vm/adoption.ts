/**
 * A machine outlives its Pod. `kubectl delete --force` and the garbage collector of Kubernetes delete Pods with a grace period of 0 and ask
 * no host, although the machine of the Pod runs. The operator then creates the next Pod of this machine on the same host. A deletion with a
 * grace period is an order, and ends the guest.
 */
import { awaitedOn } from '../../api/v1alpha1/machine.ts';
import { ADOPTS_ANNOTATION, POD_FINALIZER } from '../../api/v1alpha1/names.ts';
import type { Pod, PodSpec } from '../../kube/core.ts';
import { isForced, type Unsaved } from '../../kube/objects.ts';
import type { ObservedVM } from './observe.ts';
import { containerState, hasRun, terminated } from '../podbacked/pod.ts';

/**
 * Returns true if the machine of a forcibly deleted Pod must continue with another Pod. Its VM is wanted, it ran, and its host reported no
 * end. A machine that never ran has nothing to lose, so its VM is placed again.
 */
export function mustContinue({ vm }: Pick<ObservedVM, 'vm'>, pod: Pod): boolean {
  const { metadata, status } = vm;
  const isWanted = metadata.deletionTimestamp === undefined && status?.failure === undefined;
  const ran = status?.firstRunningTime !== undefined || hasRun(pod);
  return isForced(pod) && isWanted && ran && terminated(pod) === undefined;
}

/**
 * Returns true if the machine has run without a Pod for too long. Quotas do not count such a machine, so a tenant could otherwise keep it as
 * an extra one: with a full quota, or with another Pod of the same name.
 */
export function isTooLate({ vm, node, config, now }: ObservedVM): boolean {
  const since = awaitedOn(node)[vm.metadata.uid ?? '']?.since;
  return since !== undefined && now >= Date.parse(since) + config.hostLostTimeoutSeconds * 1000;
}

/**
 * Returns true while a VM has no Pod that shows its machine, because the next Pod of the machine is new or does not exist yet. The status of
 * the VM then stays as it is.
 */
export function isBetweenPods({ pod, successor, silentSince }: ObservedVM): boolean {
  if (pod === undefined) {
    return successor !== undefined;
  }
  const isNew = pod.metadata.deletionTimestamp === undefined && containerState(pod) === undefined;
  return isNew && silentSince === undefined && pod.metadata.annotations?.[ADOPTS_ANNOTATION] !== undefined;
}

/** Spec of a Pod with the fields that the admission plugin Priority adds. It refuses them in a new Pod if the class has changed. */
type AdmittedSpec = PodSpec & { priority?: number; preemptionPolicy?: string };

/**
 * Returns the Pod that continues the machine of `pod`. `pod` must be as the API server stores it. The result names the same host, so the
 * scheduler has no part in it. Admission sets the priority again.
 */
export function successorOf(pod: Readonly<Pod>): Unsaved<Pod> {
  const { name, namespace = '', uid = '', labels = {}, annotations, ownerReferences = [] } = pod.metadata;
  const { priority: _priority, preemptionPolicy: _policy, ...spec } = pod.spec as AdmittedSpec;
  return {
    metadata: {
      name,
      namespace,
      labels,
      annotations: { ...annotations, [ADOPTS_ANNOTATION]: uid },
      finalizers: [POD_FINALIZER],
      ownerReferences,
    },
    spec,
  };
}
