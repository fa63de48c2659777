/** Reads the refusal of a host that had no room for an Emulator. The VM keeps the host, so the same host is asked again. */
import { classOf, type RefusalReason } from '../../api/v1alpha1/reasons.ts';
import { REFUSALS } from '../../api/v1alpha1/reasons/faults.ts';
import type { Pod } from '../../kube/core.ts';
import { endOf } from '../vm/facts.ts';
import { hasEnded, terminated } from '../vm/podstate.ts';

/**
 * Time in milliseconds from the refusal until the Pod is replaced. By then, Kubernetes counts the machines that use the room, so the next
 * Pod waits in the scheduler.
 */
const RETRY_MILLISECONDS = 10_000;

export interface Refusal {
  readonly reason: RefusalReason;
  readonly message: string;
  /** Time of the next attempt, in milliseconds since the epoch. */
  readonly retryAt: number;
}

/** Returns the refusal with which the Pod ended; undefined when the Pod has not ended, or has ended for another reason. */
export function refusalOf(pod: Pod | undefined): Refusal | undefined {
  if (pod === undefined || !hasEnded(pod)) {
    return undefined;
  }
  const { reason, message } = endOf(pod);
  if (!isRefusal(reason) || classOf(reason, 'Emulator') !== 'passing') {
    return undefined;
  }
  const finished = Date.parse(terminated(pod)?.finishedAt ?? '');
  return { reason, message, retryAt: Number.isNaN(finished) ? 0 : finished + RETRY_MILLISECONDS };
}

function isRefusal(reason: string): reason is RefusalReason {
  return Object.hasOwn(REFUSALS, reason);
}
