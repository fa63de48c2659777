/** Reads the conditions of Berth's objects. */
import type { StatusCondition } from '../v1alpha1/conditions.ts';

interface WithConditions {
  readonly status?: { readonly conditions?: readonly StatusCondition[] | undefined } | undefined;
}

export function conditionOf({ status }: WithConditions, type: string): StatusCondition | undefined {
  return status?.conditions?.find((condition) => condition.type === type);
}

/**
 * Returns the message of the condition Ready if the object is not ready. The result is undefined if the object is ready, or if the message
 * is absent.
 */
export function notReadyMessage(object: WithConditions): string | undefined {
  const ready = conditionOf(object, 'Ready');
  return ready?.status === 'True' ? undefined : ready?.message || undefined;
}

/** Returns the reason of the condition Ready if the object is not ready. The result is undefined if the object is ready. */
export function notReadyReason(object: WithConditions): string | undefined {
  const ready = conditionOf(object, 'Ready');
  return ready?.status === 'True' ? undefined : ready?.reason;
}
