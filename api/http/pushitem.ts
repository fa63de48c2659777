/** Shows a push as the HTTP API and the `berth` command do. Each push is an Image that exists for an hour after its end. */
import type { Image } from '../v1alpha1/image.ts';
import { notReadyMessage } from './conditions.ts';
import type { Push } from './vmaction.ts';

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

/** Returns the status of the push. Before the push begins, the result is the status of the copy of the disk. */
function statusOf(result: string | undefined, phase = 'Pending'): Push['status'] {
  if (result === 'Succeeded' || result === 'Failed') {
    return result;
  }
  return phase === 'Failed' || phase === 'Pending' ? phase : 'Running';
}
