/** Conditions of a status, written so that an unchanged condition reads the same. */
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Condition } from '../../kube/objects.ts';

/** A condition before it is known since when it holds. */
export interface ConditionDraft extends Omit<Condition, 'lastTransitionTime' | 'observedGeneration'> {
  reason: SaidReason;
}

/** A condition keeps its transition time while its status stays; `now` is RFC 3339. */
export function stampConditions(
  drafts: readonly ConditionDraft[],
  before: readonly Condition[] | undefined,
  { now, generation }: { now: string; generation: number },
): Condition[] {
  return drafts.map((draft) => {
    const last = before?.find(({ type }) => type === draft.type);
    const kept = last?.status === draft.status ? last.lastTransitionTime : undefined;
    return { ...draft, lastTransitionTime: kept ?? now, observedGeneration: generation };
  });
}
