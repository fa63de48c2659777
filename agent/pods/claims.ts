/** What the Pods of this host hold of it. */
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import { admit, type Admission, type Claim, claimOf } from './admission.ts';
import type { Host } from './host.ts';
import { isEnded } from './times.ts';

export interface Claimants {
  host: Host;
  /** All Pods bound to this host. */
  pods: readonly Readonly<Pod>[];
  /** Whether a task was begun for the Pod of that uid. */
  hasTask: (uid: string) => boolean;
}

/** Whether a Pod that this host has done nothing for yet may begin. */
export function judge(pod: Readonly<Pod>, claimants: Claimants): Admission {
  const alive = taskClaims(pod, claimants);
  const leaving: Claim[] = [];
  const byUid = new Map(claimants.pods.map((other) => [other.metadata.uid, other]));
  for (const record of claimants.host.records.list()) {
    const owner = byUid.get(record.uid);
    if (
      owner?.metadata.deletionTimestamp === undefined &&
      owner !== undefined &&
      record.failure === undefined
    ) {
      alive.push(record.claim);
    } else if (!record.released) {
      leaving.push(record.claim);
    }
  }
  return admit(claimOf(pod), alive, leaving, claimants.host.capacity());
}

/** A task that an earlier agent began is shown running, and begins again here. */
function taskClaims(pod: Readonly<Pod>, { pods, hasTask }: Claimants): Claim[] {
  return pods
    .filter((other) => other.metadata.annotations?.[TASK_ANNOTATION] !== undefined && !isEnded(other))
    .filter(({ metadata: { uid = '' }, status }) => hasTask(uid) || status?.phase === 'Running')
    .filter((other) => other.metadata.uid !== pod.metadata.uid)
    .map(claimOf);
}
