import type { Reason } from '../../../api/v1alpha1/reasons.ts';
import type { Facts } from '../facts.ts';
import { answerBy, finishedAndDue } from '../deadlines.ts';
import type { Observed } from '../observe.ts';
import { NOTHING, type StepResult, waitFor } from './step.ts';

/** Reason of the failure after which the operator deletes a VM that never ran. */
const NAT_FAILURE: Reason = 'NATSelfHealFailed';

/**
 * Deletes a VM if nobody took the answer of its deployment in time. Also deletes a VM that has ended: at once after a NAT failure,
 * otherwise when its TTL is over. Uses only facts that are stored in the API server.
 */
export function finish(observed: Observed, _facts: Facts): StepResult {
  const until = answerBy(observed);
  if (until !== undefined && observed.now >= until) {
    return waitFor('the VM to go', { kind: 'deleteVM', unansweredSince: until });
  }
  const due = finishedAndDue(observed);
  const over = due !== undefined && observed.now >= due;
  return over || isNatFailure(observed) ? waitFor('the VM to go', { kind: 'deleteVM' }) : NOTHING;
}

/**
 * Returns true for a NAT failure of a VM that never ran. A VM that ran has a disk that somebody may want, so it is not deleted
 * for its network.
 */
function isNatFailure({ vm: { status } }: Observed): boolean {
  return status?.failure?.reason === NAT_FAILURE && status.firstRunningTime === undefined;
}
