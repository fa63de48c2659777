/** Sends Events about machines. Each Event belongs to the VM, the Emulator or the Pod of the machine. */
import { API_VERSION } from '../../api/v1alpha1/names.ts';
import type { Reason, SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { EventText } from '../../kube/events.ts';
import type { Host } from './host.ts';
import { type MachineDocument, needed, type Operation } from './machine.ts';

/** Sends a `Normal` Event for the machine's VM or Emulator. */
export function tell(
  host: Host,
  document: Readonly<MachineDocument>,
  reason: Reason,
  action: string,
  message: string,
): void {
  host.event(ownerOf(document), { type: 'Normal', reason, action, message });
}

/** Sends a `Warning` Event for the machine's VM or Emulator. */
export function warn(
  host: Host,
  document: Readonly<MachineDocument>,
  reason: Reason,
  action: string,
  message: string,
): void {
  host.event(ownerOf(document), { type: 'Warning', reason, action, message });
}

function ownerOf({ machine, emulator }: Readonly<MachineDocument>) {
  return emulator === undefined
    ? { apiVersion: API_VERSION, kind: 'VM', metadata: needed(machine).vm }
    : { apiVersion: API_VERSION, kind: 'Emulator', metadata: emulator.emulator };
}

/** Sends a `Normal` Event for the machine's Pod. The operator sends the Event for the VM when it sees the new state of the Pod. */
export function tellPod(
  host: Host,
  operation: Operation,
  reason: Reason,
  action: string,
  message: string,
): void {
  event(host, operation, { type: 'Normal', reason, action, message });
}

/** Sends an Event for the machine's Pod, unless the host no longer knows the Pod. */
export function event(host: Host, { pod }: Pick<Operation, 'pod'>, text: EventText<SaidReason>): void {
  if (pod !== undefined) {
    host.event(pod, text);
  }
}
