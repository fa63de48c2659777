/** Which taints keep a Pod off Berth's hosts: the scheduler of Kubernetes 1.36 only says that there are some. */
import { DEDICATED_KEY, NAT_TAINT } from '../../api/v1alpha1/names.ts';
import type { Node, Pod, Taint, Toleration } from '../../kube/core.ts';

/** What a person should read, by the taint's key; `%` is the number of hosts. */
const TEXTS: Readonly<Record<string, string>> = {
  [NAT_TAINT]: '% with broken NAT',
  [DEDICATED_KEY]: '% given to another namespace',
  'node.kubernetes.io/unreachable': '% not reachable',
  'node.kubernetes.io/not-ready': '% not reachable',
  'node.kubernetes.io/unschedulable': '% cordoned',
};

/** `1 with broken NAT`, `2 not reachable`, …, of the hosts that the Pod may go to otherwise. */
export function describeTaints(pod: Pod, hosts: readonly Node[]): string[] {
  const counts = new Map<string, number>();
  for (const { spec } of hosts.filter((host) => isAskedFor(pod, host))) {
    const taint = spec?.taints?.find((candidate) => keepsOff(candidate, pod));
    if (taint !== undefined) {
      const text = TEXTS[taint.key] ?? `% tainted ${taint.key}`;
      counts.set(text, (counts.get(text) ?? 0) + 1);
    }
  }
  return [...counts].map(([text, count]) => text.replace('%', String(count)));
}

/** A Pod that names its host was never compared with the others. */
function isAskedFor(pod: Pod, host: Node): boolean {
  const required = pod.spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  const fields = required?.nodeSelectorTerms[0]?.matchFields ?? [];
  return fields.every(
    ({ operator, values = [] }) => operator !== 'In' || values.includes(host.metadata.name),
  );
}

function keepsOff(taint: Taint, { spec }: Pod): boolean {
  const isHard = taint.effect !== 'PreferNoSchedule';
  return isHard && spec.tolerations?.some((toleration) => tolerates(toleration, taint)) !== true;
}

function tolerates({ key, operator, value, effect }: Toleration, taint: Taint): boolean {
  const sameKey = key === undefined || key === taint.key;
  const sameEffect = effect === undefined || effect === taint.effect;
  return sameKey && sameEffect && (operator === 'Exists' || (value ?? '') === (taint.value ?? ''));
}
