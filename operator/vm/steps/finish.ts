import type { Reason } from '../../../api/v1alpha1/reasons.ts';
import type { Facts } from '../facts.ts';
import { answerBy, finishedAndDue } from '../deadlines.ts';
import type { Observed } from '../observe.ts';
import { NOTHING, type StepResult, waitFor } from './step.ts';

/** Reason of the failure after which the operator deletes a VM that never ran. */
const NAT_FAILURE: Reason = 'NATSelfHealFailed';

/**
 * Deletes a VM if the client that deployed it did not get the answer in time. Also deletes an ended VM: after a NAT failure immediately,
 * and in other cases when its TTL is over. This step uses only facts that the API server has stored.
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
 * Returns true for a NAT failure of a VM that never ran. A VM that has run is not deleted after such a failure, because somebody might need
 * its disk.
 */
function isNatFailure({ vm: { status } }: Observed): boolean {
  return status?.failure?.reason === NAT_FAILURE && status.firstRunningTime === undefined;
}
