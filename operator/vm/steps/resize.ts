import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { hasEnded } from '../podstate.ts';
import { standingRefusal, wantedSize } from '../size.ts';
import { NOTHING, type StepResult } from './step.ts';

/**
 * Asks the API server to give the Pod the size that the VM requests. The scheduler and ResourceQuota therefore know the size before the
 * host does. If the API server refuses the size, the other steps continue, and the operator requests the size again later.
 */
export function resize(observed: Observed, facts: Facts): StepResult {
  const { pod, now } = observed;
  const ended = pod === undefined || hasEnded(pod) || pod.metadata.deletionTimestamp !== undefined;
  const size = wantedSize(observed);
  if (ended || facts.failure !== undefined || size === undefined) {
    return NOTHING;
  }
  const refused = standingRefusal(observed);
  return refused !== undefined && now < refused.retryAt
    ? NOTHING
    : { writes: [{ kind: 'resizePod', size }], outcome: { kind: 'done' } };
}
