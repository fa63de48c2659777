/** Lists the steps of a VM in their order. The first step whose outcome is not `done` ends the reconcile. */
import type { Observed } from '../observe.ts';
import { continueMachine, deploy } from './deploy.ts';
import { desire } from './desire.ts';
import { ensureFinalizer } from './finalizer.ts';
import { finish } from './finish.ts';
import { resize } from './resize.ts';
import { deleteMachine, retirePod } from './retire.ts';
import type { Step } from './step.ts';
import { ensureVncSecret } from './vncsecret.ts';

export function stepsFor({ vm }: Observed): readonly Step[] {
  return vm.metadata.deletionTimestamp === undefined
    ? [ensureFinalizer, finish, retirePod, continueMachine, deploy, resize, desire, ensureVncSecret]
    : [deleteMachine];
}
