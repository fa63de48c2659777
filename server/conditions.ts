/** Conditions of Berth's objects. */
import type { Condition } from '../api/v1alpha1/conditions.ts';

interface WithConditions {
  readonly status?: { readonly conditions?: readonly Condition[] | undefined } | undefined;
}

export function conditionOf({ status }: WithConditions, type: string): Condition | undefined {
  return status?.conditions?.find((condition) => condition.type === type);
}

/** Returns why the object is not ready; undefined when it is, or when nothing says why. */
export function notReadyMessage(object: WithConditions): string | undefined {
  const ready = conditionOf(object, 'Ready');
  return ready?.status === 'True' ? undefined : ready?.message || undefined;
}
