/** Shows the pushes of a namespace. Each is an Image that exists for an hour after its end. */
import type { Push } from '../../api/http/vmaction.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { notReadyMessage } from '../conditions.ts';
import { PUSH_NAME } from './disk.ts';

export function isPush({ metadata, spec }: Image): boolean {
  return metadata.name.startsWith(PUSH_NAME) && spec.push !== undefined && spec.source.fromVM !== undefined;
}

export function pushItem({ metadata, spec, status = {} }: Image): Push {
  const { reference = '', requestedAt } = spec.push ?? {};
  const { lastPush } = status;
  const last = lastPush?.requestedAt === requestedAt ? lastPush : undefined;
  return {
    jobName: metadata.name,
    image: reference,
    status: statusOf(last?.result, status.phase),
    progressPercent: status.progressPercent,
    message: last?.message || notReadyMessage({ status }),
  };
}

/** Returns the status from the result of the push, or else from the phase of the copy of the disk. */
function statusOf(result: string | undefined, phase = 'Pending'): Push['status'] {
  if (result === 'Succeeded' || result === 'Failed') {
    return result;
  }
  return phase === 'Failed' || phase === 'Pending' ? phase : 'Running';
}
