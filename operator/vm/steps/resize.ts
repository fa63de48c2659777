import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { hasEnded } from '../podstate.ts';
import { standingRefusal, wantedSize } from '../size.ts';
import { NOTHING, type StepResult } from './step.ts';

/**
 * Requests the size that the VM wants for its Pod from the API server. Scheduler and ResourceQuota thus know the size before the
 * host does. A refusal blocks no other step, and the size is requested again after a wait.
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
