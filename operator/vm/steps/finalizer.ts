import { VM_FINALIZER } from '../../../api/v1alpha1/names.ts';
import { NOTHING, type StepResult } from './step.ts';
import type { Observed } from '../observe.ts';

/** Adds the VM's finalizer. This step comes first, so that a VM cannot disappear while parts of it exist. */
export function ensureFinalizer({ vm }: Observed): StepResult {
  return vm.metadata.finalizers?.includes(VM_FINALIZER) === true
    ? NOTHING
    : { writes: [{ kind: 'addFinalizer' }], outcome: { kind: 'done' } };
}
