/**
 * Determines from the Pod of an Emulator whether a host refused the Pod because the host had no room. The operator asks the same host again
 * later, because an Emulator must run on the host of its VM.
 */
import { classOf, type RefusalReason } from '../../api/v1alpha1/reasons.ts';
import { REFUSALS } from '../../api/v1alpha1/reasons/faults.ts';
import type { Pod } from '../../kube/core.ts';
import { endOf } from '../vm/facts.ts';
import { hasEnded, terminated } from '../vm/podstate.ts';

/**
 * Time in milliseconds from the refusal until the Pod is replaced. During this time, the scheduler learns which machines use the host.
 * Therefore the next Pod waits in the scheduler until the host has room.
 */
const RETRY_MILLISECONDS = 10_000;

export interface Refusal {
  readonly reason: RefusalReason;
  readonly message: string;
  /** Time of the next attempt, in milliseconds since the epoch. */
  readonly retryAt: number;
}

/**
 * Returns the refusal with which the Pod ended. The result is undefined if the Pod has not ended, or has ended for another reason. `now` is
 * in milliseconds since the epoch.
 */
export function refusalOf(pod: Pod | undefined, now: number): Refusal | undefined {
  if (pod === undefined || !hasEnded(pod)) {
    return undefined;
  }
  const { reason, message } = endOf(pod);
  return isRefusal(reason) && classOf(reason, 'Emulator') === 'passing'
    ? { reason, message, retryAt: endTime(pod, now) + RETRY_MILLISECONDS }
    : undefined;
}

/**
 * Returns the time when the Pod ended, in milliseconds since the epoch. If this time is impossible because the clock of the host is wrong,
 * returns the time when the Pod was created.
 */
function endTime(pod: Pod, now: number): number {
  const created = Date.parse(pod.metadata.creationTimestamp ?? '');
  const finished = Date.parse(terminated(pod)?.finishedAt ?? '');
  return created <= finished && finished <= now ? finished : created;
}

function isRefusal(reason: string): reason is RefusalReason {
  return Object.hasOwn(REFUSALS, reason);
}
