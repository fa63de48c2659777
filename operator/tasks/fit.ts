/** Tells which hosts a Pod of Berth can run on, by the rules of the scheduler. `placement.ts` writes what is read here. */
import type {
  Node,
  NodeSelectorRequirement,
  NodeSelectorTerm,
  PodSpec,
  Taint,
  Toleration,
} from '../../kube/core.ts';

/**
 * Keys of the taints that Kubernetes and cordons put on a host while it is off or starts. They go away when the host reports again, so they
 * do not tell whether the host suits a Pod.
 */
const PASSING: ReadonlySet<string> = new Set([
  'node.kubernetes.io/unreachable',
  'node.kubernetes.io/not-ready',
  'node.kubernetes.io/unschedulable',
]);

/** Returns true if the taint goes away when the host reports again. */
export function isPassing({ key }: Taint): boolean {
  return PASSING.has(key);
}

/**
 * Returns true if the Pod can run on the host once the host reports, has space and is not cordoned: its name, its labels and its lasting taints
 * suit the Pod.
 */
export function suits(spec: PodSpec, node: Readonly<Node>): boolean {
  const taints = node.spec?.taints ?? [];
  return matchesAffinity(spec, node) && !taints.some((taint) => !isPassing(taint) && keepsOff(taint, spec));
}

/** Returns true if the taint keeps the Pod off the host. */
export function keepsOff(taint: Taint, { tolerations }: Pick<PodSpec, 'tolerations'>): boolean {
  const isHard = taint.effect !== 'PreferNoSchedule';
  return isHard && tolerations?.some((toleration) => tolerates(toleration, taint)) !== true;
}

function tolerates({ key, operator, value, effect }: Toleration, taint: Taint): boolean {
  const sameKey = key === undefined || key === taint.key;
  const sameEffect = effect === undefined || effect === taint.effect;
  return sameKey && sameEffect && (operator === 'Exists' || (value ?? '') === (taint.value ?? ''));
}

function matchesAffinity({ affinity }: PodSpec, node: Readonly<Node>): boolean {
  const required = affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  return required === undefined || required.nodeSelectorTerms.some((term) => matchesTerm(term, node));
}

function matchesTerm(
  { matchExpressions = [], matchFields = [] }: NodeSelectorTerm,
  node: Readonly<Node>,
): boolean {
  const { labels = {}, name } = node.metadata;
  return (
    matchExpressions.every((requirement) => meets(requirement, labels[requirement.key])) &&
    // The name is the only field of a Node that the API server accepts here.
    matchFields.every((requirement) => meets(requirement, name))
  );
}

/** Berth writes no requirement with the operators Gt and Lt. */
function meets({ operator, values = [] }: NodeSelectorRequirement, value: string | undefined): boolean {
  switch (operator) {
    case 'In':
      return value !== undefined && values.includes(value);
    case 'NotIn':
      return value === undefined || !values.includes(value);
    case 'Exists':
      return value !== undefined;
    case 'DoesNotExist':
      return value === undefined;
    default:
      return false;
  }
}
