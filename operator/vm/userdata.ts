/** Computes the condition that shows whether the guest of a VM has received its user data. */
import { USER_DATA_CONDITION } from '../../api/v1alpha1/names.ts';
import { saidReason } from '../../api/v1alpha1/reasons.ts';
import type { ConditionDraft } from '../objects/conditions.ts';
import type { Observed } from './observe.ts';
import { podCondition } from './podstate.ts';

/**
 * Returns the condition `UserDataReady`. The result is undefined for a VM without user data, and before a host has tried to start the
 * machine. If the agent of the host is so old that it ignores user data, the status of the condition is Unknown.
 */
export function userDataReady({ vm, pod }: Observed): ConditionDraft | undefined {
  const type = 'UserDataReady';
  const { userData, userDataSecretRef } = vm.spec;
  if (userData === undefined && userDataSecretRef === undefined) {
    return undefined;
  }
  const said = podCondition(pod, USER_DATA_CONDITION);
  if (said !== undefined) {
    const reason = saidReason(said.reason, 'Reported');
    return { type, status: said.status, reason, message: said.message ?? '' };
  }
  return pod?.status?.phase === 'Running'
    ? { type, status: 'Unknown', reason: 'NotReported', message: '' }
    : undefined;
}
