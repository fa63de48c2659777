/** How the disk of a host is in the way of a VM that runs there. */
import { DISK_CONDITION, HOST_DISK_FULL, NO_ROOM_TO_SUSPEND } from '../../api/v1alpha1/names.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { ConditionDraft } from '../objects/conditions.ts';
import { podCondition } from './podstate.ts';

const REASONS = [HOST_DISK_FULL, NO_ROOM_TO_SUSPEND] as const;

/** The VM's machine is paused: not Ready, though it is Running. */
export function pausedByDisk(pod: Pod | undefined): ConditionDraft | undefined {
  const message = told(pod, HOST_DISK_FULL);
  return message === undefined
    ? undefined
    : { type: 'Ready', status: 'False', reason: HOST_DISK_FULL, message };
}

/** The VM's machine runs on, though it was to be suspended. */
export function unsuspendedByDisk(pod: Pod | undefined): ConditionDraft | undefined {
  const message = told(pod, NO_ROOM_TO_SUSPEND);
  return message === undefined
    ? undefined
    : { type: 'Reconciling', status: 'True', reason: NO_ROOM_TO_SUSPEND, message };
}

/** What the last status said of it. */
export function toldTrouble(status: VMStatus | undefined): { reason: Reason; message: string } | undefined {
  for (const reason of REASONS) {
    const condition = status?.conditions?.find((one) => one.reason === reason);
    if (condition !== undefined) {
      return { reason, message: condition.message };
    }
  }
  return undefined;
}

function told(pod: Pod | undefined, reason: Reason): string | undefined {
  const condition = podCondition(pod, DISK_CONDITION);
  return condition?.status === 'False' && condition.reason === reason ? (condition.message ?? '') : undefined;
}
