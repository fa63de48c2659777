/**
 * Creates the conditions of a status. An unchanged condition is deeply equal to the condition in the last status, so it causes no request
 * to the API server.
 */
import type { LooseCondition } from './core.ts';
import type { Condition } from './objects.ts';

/** Returns the condition of this type in a status. The result is undefined if there is none. */
export function conditionIn<Any extends LooseCondition>(
  status: { readonly conditions?: readonly Any[] | undefined } | undefined,
  type: string,
): Any | undefined {
  return status?.conditions?.find((condition) => condition.type === type);
}

/**
 * Completes conditions with their transition time and the generation. A condition keeps its transition time while its status stays the same.
 * `now` is in RFC 3339.
 */
export function stampTimes<Draft extends Omit<Condition, 'lastTransitionTime' | 'observedGeneration'>>(
  drafts: readonly Draft[],
  before: readonly Condition[] | undefined,
  { now, generation }: { now: string; generation: number },
): (Draft & Condition)[] {
  return drafts.map((draft) => {
    const last = before?.find(({ type }) => type === draft.type);
    const kept = last?.status === draft.status ? last.lastTransitionTime : undefined;
    return { ...draft, lastTransitionTime: kept ?? now, observedGeneration: generation };
  });
}
