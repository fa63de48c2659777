/**
 * Turns a push into the item that the HTTP API and the `berth` command show. Each push is stored as an Image object. The operator deletes
 * this Image an hour after the push has ended.
 */
import type { Image } from '../v1alpha1/image.ts';
import { notReadyMessage } from './conditions.ts';
import type { Push } from './vmaction.ts';

/** Prefix of the name of each push. */
export const PUSH_NAME = 'vm-push-';

/** Reports whether the Image represents a push of a VM's disk to a registry. */
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
    status: statusOf(last?.result, status),
    progressPercent: status.progressPercent,
    message: last?.message || notReadyMessage({ status }),
  };
}

/**
 * Returns the status of the push. A push first copies the disk. If a copy fails and the operator will copy the disk again, the push is
 * Pending, because clients take Failed for the end. If the Image is finished but has no result of the push, the push has failed. The cause
 * can be that the VM was deleted before the copy.
 */
function statusOf(
  result: string | undefined,
  { phase = 'Pending', finishedTime }: NonNullable<Image['status']>,
): Push['status'] {
  if (result === 'Succeeded' || result === 'Failed') {
    return result;
  }
  if (finishedTime !== undefined) {
    return 'Failed';
  }
  return phase === 'Failed' || phase === 'Pending' ? 'Pending' : 'Running';
}
