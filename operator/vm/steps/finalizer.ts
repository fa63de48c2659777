import { VM_FINALIZER } from '../../../api/v1alpha1/names.ts';
import { NOTHING, type StepResult } from './step.ts';
import type { Observed } from '../observe.ts';

/** First of all, so that a VM can never vanish while something of it exists. */
export function ensureFinalizer({ vm }: Observed): StepResult {
  return vm.metadata.finalizers?.includes(VM_FINALIZER) === true
    ? NOTHING
    : { writes: [{ kind: 'addFinalizer' }], outcome: { kind: 'done' } };
}
