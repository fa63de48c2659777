/** Counts the slots of hosts. VMs, emulators and cache Jobs use one slot each. */
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { Node, Pod, PodSpec } from '../../kube/core.ts';

/** Returns the number of slots that a host has. */
export function slotsOf(node: Readonly<Node> | undefined): number {
  return Number(node?.status?.allocatable?.[SLOT_RESOURCE] ?? 0);
}

/** Returns true if the Pod of a machine uses a slot of its host. */
export function holdsSlot({ status }: Readonly<Pod>): boolean {
  return status?.phase !== 'Failed' && status?.phase !== 'Succeeded';
}

export function asksForSlot({ containers }: Readonly<Pick<PodSpec, 'containers'>>): boolean {
  return containers.some(({ resources }) => resources?.requests?.[SLOT_RESOURCE] !== undefined);
}
