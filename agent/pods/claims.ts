/** What the Pods of this host hold of it. */
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { TaskRunner } from '../tasks/runner.ts';
import { admit, type Admission, type Claim, claimOf, claimOfSize } from './admission.ts';
import type { Host } from './host.ts';
import type { MachineRecord } from './machine.ts';
import { isEnded } from './times.ts';

export interface Claimants {
  host: Host;
  /** All Pods bound to this host. */
  pods: readonly Readonly<Pod>[];
  /** Which tasks were begun, by their Pods' uids. */
  tasks: Pick<TaskRunner, 'state'>;
}

/** Whether a Pod that this host has done nothing for yet may begin. */
export function judge(pod: Readonly<Pod>, claimants: Claimants): Admission {
  const { alive, leaving } = claimsBeside(pod, claimants);
  return admit(claimOf(pod), alive, leaving, claimants.host.capacity());
}

/** What all others hold, as {@link admit} wants it. */
export function claimsBeside(
  pod: Readonly<Pod>,
  claimants: Claimants,
): { alive: readonly Claim[]; leaving: readonly Claim[] } {
  const alive = taskClaims(pod, claimants);
  const leaving: Claim[] = [];
  const byUid = new Map(claimants.pods.map((other) => [other.metadata.uid, other]));
  for (const record of claimants.host.records.list()) {
    const owner = byUid.get(record.uid);
    if (record.uid === pod.metadata.uid) {
      continue;
    }
    if (
      owner?.metadata.deletionTimestamp === undefined &&
      owner !== undefined &&
      record.failure === undefined
    ) {
      alive.push(heldBy(record));
    } else if (!record.released) {
      leaving.push(heldBy(record));
    }
  }
  return { alive, leaving };
}

/** What is promised to a machine or, where that is more, what it still runs with. */
function heldBy({ claim, startedWith }: Readonly<MachineRecord>): Claim {
  if (startedWith === undefined) {
    return claim;
  }
  const running = claimOfSize(startedWith);
  return {
    ...claim,
    cpuMillis: Math.max(claim.cpuMillis, running.cpuMillis),
    memoryBytes: Math.max(claim.memoryBytes, running.memoryBytes),
  };
}

/** A task that an earlier agent began is shown running, and begins again here. */
function taskClaims(pod: Readonly<Pod>, { pods, tasks }: Claimants): Claim[] {
  return pods
    .filter((other) => other.metadata.annotations?.[TASK_ANNOTATION] !== undefined && !isEnded(other))
    .filter(
      ({ metadata: { uid = '' }, status }) => tasks.state(uid) !== undefined || status?.phase === 'Running',
    )
    .filter((other) => other.metadata.uid !== pod.metadata.uid)
    .map(claimOf);
}
