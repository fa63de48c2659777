import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { hasEnded } from '../podstate.ts';
import { standingRefusal, wantedSize } from '../size.ts';
import { NOTHING, type StepResult } from './step.ts';

/**
 * Asks the API server to let the Pod have the size that the VM wants, so that scheduler and ResourceQuota count it before the
 * host hears of it. A refusal holds up nothing else, and is asked again after a while.
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
