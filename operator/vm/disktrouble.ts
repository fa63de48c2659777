/** Reports how the full disk of a host affects a VM that runs there. */
import { DISK_CONDITION, HOST_DISK_FULL, NO_ROOM_TO_SUSPEND } from '../../api/v1alpha1/names.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { ConditionDraft } from '../objects/conditions.ts';
import { podCondition } from '../podbacked/pod.ts';

const REASONS = [HOST_DISK_FULL, NO_ROOM_TO_SUSPEND] as const;

/**
 * Returns the Ready condition of a VM whose machine is paused because the disk of the host is full. Such a VM is Running, but not Ready.
 * For other VMs the result is undefined.
 */
export function pausedByDisk(pod: Pod | undefined): ConditionDraft | undefined {
  const message = reportedMessage(pod, HOST_DISK_FULL);
  return message === undefined
    ? undefined
    : { type: 'Ready', status: 'False', reason: HOST_DISK_FULL, message };
}

/** Returns why a VM that is to be suspended still runs: the host's disk has no space for its memory. Otherwise returns undefined. */
export function unsuspendedByDisk(
  pod: Pod | undefined,
): Pick<ConditionDraft, 'reason' | 'message'> | undefined {
  const message = reportedMessage(pod, NO_ROOM_TO_SUSPEND);
  return message === undefined ? undefined : { reason: NO_ROOM_TO_SUSPEND, message };
}

/** Returns the disk problem that a status reports. The result is undefined if the status reports no such problem. */
export function reportedTrouble(
  status: VMStatus | undefined,
): { reason: Reason; message: string } | undefined {
  for (const reason of REASONS) {
    const condition = status?.conditions?.find((one) => one.reason === reason);
    if (condition !== undefined) {
      return { reason, message: condition.message };
    }
  }
  return undefined;
}

function reportedMessage(pod: Pod | undefined, reason: Reason): string | undefined {
  const condition = podCondition(pod, DISK_CONDITION);
  return condition?.status === 'False' && condition.reason === reason ? (condition.message ?? '') : undefined;
}
