/** Creates the conditions of a status: their messages, times and generations. */
import { meaningOf, type SaidReason } from '../../api/v1alpha1/reasons.ts';
import { stampTimes } from '../../kube/conditions.ts';
import type { Condition } from '../../kube/objects.ts';

export { conditionIn } from '../../kube/conditions.ts';

/**
 * Condition without its transition time and generation, which {@link stampConditions} adds. If the message is empty, it becomes the meaning of
 * the reason.
 */
export interface ConditionDraft extends Omit<Condition, 'lastTransitionTime' | 'observedGeneration'> {
  reason: SaidReason;
}

/**
 * Completes conditions with a message, their transition time and the generation. Users of kstatus and `kubectl get -o wide` see only the
 * message. `now` is in RFC 3339.
 */
export function stampConditions(
  drafts: readonly ConditionDraft[],
  before: readonly Condition[] | undefined,
  at: { now: string; generation: number },
): Condition[] {
  const complete = drafts.map((draft) => ({ ...draft, message: draft.message || meaningOf(draft.reason) }));
  return stampTimes(complete, before, at);
}
