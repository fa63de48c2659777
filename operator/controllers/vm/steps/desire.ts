import { type Desired, desiredSchema, parseDocument } from '../../../../api/v1alpha1/machine.ts';
import { parseQuantity } from '../../../../api/v1alpha1/quantity.ts';
import type { VMSpec } from '../../../../api/v1alpha1/vm.ts';
import { type Facts, hasEnded } from '../facts.ts';
import type { Observed } from '../observed.ts';
import { desiredText } from '../phase.ts';
import { buildDesired } from '../pod.ts';
import { NOTHING, type StepResult } from './step.ts';

/** Tells the agent what the machine should be now; what the VM does not say stays as it was resolved at deployment. */
export function desire({ vm, pod }: Observed, facts: Facts): StepResult {
  const ended = pod === undefined || hasEnded(pod) || pod.metadata.deletionTimestamp !== undefined;
  if (ended || facts.failure !== undefined) {
    return NOTHING;
  }
  const text = desiredText(pod);
  const current = desiredSchema.safeParse(parseDocument(text));
  if (!current.success) {
    return NOTHING;
  }
  const wanted = JSON.stringify(buildDesired(vm, size(vm.spec, current.data)));
  return wanted === text
    ? NOTHING
    : { writes: [{ kind: 'patchDesired', text: wanted }], outcome: { kind: 'done' } };
}

function size(spec: VMSpec, current: Desired): Parameters<typeof buildDesired>[1] {
  const { memory, diskSize, cpu } = spec;
  const before = current.diskSizeBytes === undefined ? undefined : BigInt(current.diskSizeBytes);
  return {
    cpu: cpu ?? current.cpu,
    memoryBytes: memory === undefined ? BigInt(current.memoryBytes) : parseQuantity(memory),
    diskSizeBytes: diskSize === undefined ? before : parseQuantity(diskSize),
  };
}
