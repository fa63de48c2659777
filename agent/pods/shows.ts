import { isDeepStrictEqual } from 'node:util';
import type { Pod, PodCondition, PodStatus } from '../../kube/core.ts';

/** Whether the Pod shows all of `wanted` already: what others wrote beside it does not count. */
export function showsAlready(pod: Pod, wanted: PodStatus): boolean {
  const { conditions: wantedConditions = [], ...rest } = wanted;
  const current: Record<string, unknown> = { ...pod.status };
  const same = Object.entries(rest).every(([key, value]) => isDeepStrictEqual(current[key], value));
  const others = pod.status?.conditions ?? [];
  return (
    same &&
    wantedConditions.every((wanted) =>
      others.some((other) => other.type === wanted.type && isDeepStrictEqual(withoutProbe(other), wanted)),
    )
  );
}

/** The API server adds `lastProbeTime: null` to what it returns. */
function withoutProbe(condition: PodCondition): PodCondition {
  const { lastProbeTime, ...rest } = condition;
  return lastProbeTime === undefined || lastProbeTime === null ? rest : condition;
}
