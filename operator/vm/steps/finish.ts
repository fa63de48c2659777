import type { Reason } from '../../../api/v1alpha1/reasons.ts';
import type { Facts } from '../facts.ts';
import { finishedAndDue } from '../deadlines.ts';
import type { Observed } from '../observe.ts';
import { NOTHING, type StepResult, waitFor } from './step.ts';

/** The failure after which the VM itself is deleted: what users were promised of NAT self-healing. */
const NAT_FAILURE: Reason = 'NATSelfHealFailed';

/** Deletes a VM that has ended: at once after a NAT failure, else when its TTL is over. Acts on written facts only. */
export function finish(observed: Observed, _facts: Facts): StepResult {
  const due = finishedAndDue(observed);
  const over = due !== undefined && observed.now >= due;
  return over || isNatFailure(observed) ? waitFor('the VM to go', { kind: 'deleteVM' }) : NOTHING;
}

/** A VM that has run has a disk that somebody may want: it is never deleted for its network. */
function isNatFailure({ vm: { status } }: Observed): boolean {
  return status?.failure?.reason === NAT_FAILURE && status.firstRunningTime === undefined;
}
