/** Gives a machine whose Pod was deleted by force to the next Pod of its VM. */
import { ADOPTS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { Host } from './host.ts';
import type { MachineRecord, Runtimes } from './machine.ts';
import { roleOf } from './pod.ts';

/** Returns whether the Pod continues the machine of an earlier Pod. The host must never create a new machine for it. */
export function adopts({ metadata }: Readonly<Pod>): boolean {
  return metadata.annotations?.[ADOPTS_ANNOTATION] !== undefined;
}

/** Returns whether the Pod continues this machine. */
function isSuccessor(pod: Readonly<Pod>, { machine, created }: Readonly<MachineRecord>): boolean {
  const role = roleOf(pod);
  const vm = role.kind === 'machine' ? role.machine?.vm : undefined;
  return adopts(pod) && created && vm !== undefined && vm.uid === machine?.vm.uid;
}

/** Gives the machine to the Pod if this Pod continues it. Returns false if it does not. */
export function takeOver(
  { records }: Pick<Host, 'records'>,
  machines: Runtimes,
  pod: Readonly<Pod> | undefined,
  record: MachineRecord,
): boolean {
  if (pod === undefined || !isSuccessor(pod, record)) {
    return false;
  }
  records.update(record, { podUid: pod.metadata.uid ?? '' });
  machines.runtime(record).leaving = undefined;
  return true;
}

/**
 * Returns whether a machine without a Pod must stay. The operator lists the machines that get another Pod on the Node. While the operator has
 * not set up the Node, for example because the Node is new, every machine stays.
 */
export function mustStay(
  host: Pick<Host, 'capacity' | 'isAwaited'>,
  record: Readonly<MachineRecord>,
): boolean {
  return host.capacity().slots === undefined || host.isAwaited(record);
}
