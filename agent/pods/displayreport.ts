/** Makes the part of a machine's report that says whether the guest has the display that its VM asks for. */
import type { MachineReport } from '../../api/v1alpha1/machine.ts';
import type { Runtime } from './machine.ts';

/** Limit of the message in characters. The longest message of the QEMU driver fits. */
const MESSAGE_LENGTH = 320;

/** Returns the report. Its message has only characters that JSON writes as one, so that the machine's whole report is short. */
export function displayReport({ state }: Pick<Runtime, 'state'>): Pick<MachineReport, 'display'> {
  const display = state.kind === 'running' ? state.display : undefined;
  if (display === undefined) {
    return {};
  }
  const message = display.message.replaceAll(/[^\w .,:;×'()/-]/g, '?').slice(0, MESSAGE_LENGTH);
  return { display: { ...display, message } };
}
