/**
 * Creates the conditions of a status. An unchanged condition is deeply equal to the condition in the last status, so it causes no request
 * to the API server.
 */
import { meaningOf, type SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { LooseCondition } from '../../kube/core.ts';
import type { Condition } from '../../kube/objects.ts';

/** Returns the condition of this type in a status. The result is undefined if there is none. */
export function conditionIn<Any extends LooseCondition>(
  status: { readonly conditions?: readonly Any[] | undefined } | undefined,
  type: string,
): Any | undefined {
  return status?.conditions?.find((condition) => condition.type === type);
}

/**
 * Condition without its transition time and generation, which {@link stampConditions} adds. If the message is empty, it becomes the meaning of
 * the reason.
 */
export interface ConditionDraft extends Omit<Condition, 'lastTransitionTime' | 'observedGeneration'> {
  reason: SaidReason;
}

/**
 * Completes conditions with a message, their transition time and the generation. Users of kstatus and `kubectl get -o wide` see only the
 * message. A condition keeps its transition time while its status stays the same. `now` is in RFC 3339.
 */
export function stampConditions(
  drafts: readonly ConditionDraft[],
  before: readonly Condition[] | undefined,
  { now, generation }: { now: string; generation: number },
): Condition[] {
  return drafts.map((draft) => {
    const last = before?.find(({ type }) => type === draft.type);
    const kept = last?.status === draft.status ? last.lastTransitionTime : undefined;
    const message = draft.message || meaningOf(draft.reason);
    return { ...draft, message, lastTransitionTime: kept ?? now, observedGeneration: generation };
  });
}
