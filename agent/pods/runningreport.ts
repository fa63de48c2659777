/** Makes the parts of a machine's report that only its driver knows, and that the machine has only while it runs. */
import type { MachineReport } from '../../api/v1alpha1/machine.ts';
import type { Runtime } from './machine.ts';

/** Largest length of a message about the display, the identity, the keys or the suspension, in characters. No honest message is longer. */
const STATE_MESSAGE_LENGTH = 320;

/**
 * Returns the parts of the report that the driver knows about a running machine. Their messages contain only characters that JSON writes
 * without an escape, so that the machine's whole report is short.
 */
export function runningReport({
  state,
}: Pick<Runtime, 'state'>): Pick<MachineReport, 'display' | 'identity' | 'keys' | 'cannotSuspend'> {
  if (state.kind !== 'running') {
    return {};
  }
  const { display, identity, keys, cannotSuspend } = state;
  return {
    ...(display && { display: shortened(display) }),
    ...(identity && { identity: shortened(identity) }),
    ...(keys && { keys: shortened(keys) }),
    ...(cannotSuspend !== undefined && { cannotSuspend: shortText(cannotSuspend) }),
  };
}

function shortened<State extends { message: string }>(state: State): State {
  return { ...state, message: shortText(state.message) };
}

function shortText(message: string): string {
  return escapeFree(message).slice(0, STATE_MESSAGE_LENGTH);
}

/** Replaces the characters for which JSON needs an escape, so that the length of the text is that of its JSON. */
export function escapeFree(text: string): string {
  return text.replaceAll(/[^\w .,:;×'()/-]/g, '?');
}
