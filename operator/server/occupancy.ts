/** Counts the machines that run on a host. All functions are pure. */
import { awaitedOn } from '../../api/v1alpha1/awaited.ts';
import { EMULATOR_UID_LABEL, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { desiredOf, hasEnded, isMachineOff } from '../vm/podstate.ts';

/**
 * Returns the number of machines on a host that run, are about to run, or run without a Pod because it was deleted by force. `pods` are the
 * Pods that are bound to the host.
 */
export function runningMachines(node: Readonly<Node> | undefined, pods: readonly Readonly<Pod>[]): number {
  const awaited = node === undefined ? {} : awaitedOn(node);
  const present = new Set(pods.map((pod) => pod.metadata.labels?.[VM_UID_LABEL]));
  const withoutPod = Object.keys(awaited).filter((uid) => !present.has(uid)).length;
  return withoutPod + pods.filter(isRunning).length;
}

/** Returns true for the Pod of a VM that is not off, and for the Pod of an Emulator that has not ended. */
function isRunning(pod: Readonly<Pod>): boolean {
  const { labels = {} } = pod.metadata;
  if (hasEnded(pod)) {
    return false;
  }
  return labels[VM_UID_LABEL] === undefined ? labels[EMULATOR_UID_LABEL] !== undefined : !isOff(pod);
}

/** Returns true if the machine of a VM is stopped or suspended and stays so. */
function isOff(pod: Readonly<Pod>): boolean {
  return isMachineOff(pod) && desiredOf(pod)?.power !== 'Running';
}
