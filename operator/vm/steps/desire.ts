import type { Desired } from '../../../api/v1alpha1/machine.ts';
import { parseQuantity } from '../../../api/v1alpha1/quantity.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import type { Pod } from '../../../kube/core.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { buildDesired } from '../pod.ts';
import { desiredOf, desiredText, hasEnded } from '../podstate.ts';
import { podSize } from '../size.ts';
import { NOTHING, type StepResult } from './step.ts';

/**
 * Writes the annotation with the desired state of the machine for the agent. CPU and memory come from the Pod's requests, and the disk size
 * comes from the VM.
 */
export function desire({ vm, pod, powered }: Observed, facts: Facts): StepResult {
  const ended = pod === undefined || hasEnded(pod) || pod.metadata.deletionTimestamp !== undefined;
  if (ended || facts.failure !== undefined) {
    return NOTHING;
  }
  const current = desiredOf(pod);
  if (current === undefined || (isGoingOff(powered) && current.power !== 'Running')) {
    return NOTHING;
  }
  const wanted = JSON.stringify(buildDesired(vm, size(vm, pod, current)));
  return wanted === desiredText(pod)
    ? NOTHING
    : { writes: [{ kind: 'patchDesired', text: wanted }], outcome: { kind: 'done' } };
}

/** Returns true while Berth switches the host off. A machine that is off must not start then, because the power would end it. */
function isGoingOff(powered: Observed['powered']): boolean {
  return powered?.state === 'Leaving' || powered?.state === 'Off';
}

/**
 * Returns the size of the machine. The disk never gets smaller, even if the VM requests a smaller size. A VM can do so if its first disk
 * size came from a VMConfig.
 */
function size({ spec }: VM, pod: Pod, current: Desired): Parameters<typeof buildDesired>[1] {
  const before = current.diskSizeBytes === undefined ? undefined : BigInt(current.diskSizeBytes);
  const requested = spec.diskSize === undefined ? undefined : parseQuantity(spec.diskSize);
  const isSmaller = before !== undefined && requested !== undefined && requested < before;
  const { cpu, memoryBytes } = podSize(pod) ?? current;
  return {
    cpu,
    memoryBytes: BigInt(memoryBytes),
    diskSizeBytes: isSmaller ? before : (requested ?? before),
  };
}
