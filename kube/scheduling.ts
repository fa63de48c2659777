/** Tells which Nodes can take a Pod, by the rules of the scheduler. It counts no resources and no ports. */
import { conditionIn } from './conditions.ts';
import type { Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration } from './core.ts';

/** Fields of a Pod that choose its Nodes. */
export type Placing = Pick<PodSpec, 'nodeSelector' | 'affinity' | 'tolerations'>;

/** Taint of a cordoned Node. After a cordon by a person, Kubernetes adds it a moment later. */
export const CORDON_TAINT: Taint = { key: 'node.kubernetes.io/unschedulable', effect: 'NoSchedule' };

/**
 * Keys of the taints that Kubernetes and cordons put on a host while it is off or starts. They go away when the host reports again, so they
 * do not tell whether the host suits a Pod.
 */
const PASSING: ReadonlySet<string> = new Set([
  'node.kubernetes.io/unreachable',
  'node.kubernetes.io/not-ready',
  CORDON_TAINT.key,
]);

/** Returns true if the taint goes away when the host reports again. */
export function isPassing({ key }: Taint): boolean {
  return PASSING.has(key);
}

/**
 * Returns true if the Pod can run on the host once the host reports, has space and is not cordoned: its name, its labels and its lasting taints
 * suit the Pod.
 */
export function suits(spec: Placing, node: Readonly<Node>): boolean {
  const taints = node.spec?.taints ?? [];
  return matchesNode(spec, node) && !taints.some((taint) => !isPassing(taint) && keepsOff(taint, spec));
}

/** Returns true if the host takes the Pod now, as soon as it has space: the host suits, reports, and is not cordoned. */
export function isOpenFor(spec: Placing, node: Readonly<Node>): boolean {
  return (
    conditionIn(node.status, 'Ready')?.status === 'True' &&
    node.spec?.unschedulable !== true &&
    (node.spec?.taints ?? []).every((taint) => !keepsOff(taint, spec)) &&
    matchesNode(spec, node)
  );
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

/** Returns true if labels and name of the Node are those that the Pod asks for. */
function matchesNode({ nodeSelector = {}, affinity }: Placing, node: Readonly<Node>): boolean {
  const required = affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  return (
    Object.entries(nodeSelector).every(([key, value]) => node.metadata.labels?.[key] === value) &&
    (required === undefined || required.nodeSelectorTerms.some((term) => matchesTerm(term, node)))
  );
}

function matchesTerm(
  { matchExpressions = [], matchFields = [] }: NodeSelectorTerm,
  node: Readonly<Node>,
): boolean {
  const { labels = {}, name } = node.metadata;
  return (
    // A term without requirements selects nothing.
    matchExpressions.length + matchFields.length > 0 &&
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
