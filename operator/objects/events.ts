/** Makes the texts of the operator's Events. */
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { EventRecorder, EventText } from '../../kube/events.ts';

export type Recorder = EventRecorder<SaidReason>;
export type OperatorEvent = EventText<SaidReason>;

export function normal(reason: SaidReason, action: string, message: string): OperatorEvent {
  return { type: 'Normal', reason, action, message };
}

export function warning(reason: SaidReason, action: string, message: string): OperatorEvent {
  return { type: 'Warning', reason, action, message };
}
