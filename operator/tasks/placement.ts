/** Builds the part of a Pod's spec that determines the hosts on which the Pod can run. The Pods of VMs and of tasks both have this part. */
import {
  DEDICATED_KEY,
  HOST_KEY,
  HOST_MARK,
  HOST_VALUE,
  ONLY_NAMESPACE_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { Job, NodeAffinity, NodeSelectorRequirement, PodSpec, Toleration } from '../../kube/core.ts';

export interface Placement {
  /**
   * Namespace whose dedicated hosts are allowed. The value `*` allows the dedicated hosts of every namespace, for Jobs of the system
   * namespace. Hosts that see only their own namespace are left out.
   */
  readonly dedicatedTo: string;
  readonly architecture?: 'amd64' | 'arm64' | undefined;
  /** Name of the only allowed host. If it is undefined, any host is allowed. */
  readonly nodeName?: string | undefined;
  readonly avoidedNodes?: readonly string[];
  readonly required?: readonly NodeSelectorRequirement[];
  readonly preferred?: NodeSelectorRequirement | undefined;
}

export interface HostPodOptions {
  readonly placement: Placement;
  /** Tolerations that are added to the tolerations of every Pod on a host. */
  readonly tolerations: readonly Toleration[];
  readonly pullSecrets: readonly { readonly name: string }[];
  readonly priorityClassName: string;
}

export function hostPodSpec(options: HostPodOptions): Omit<PodSpec, 'containers'> {
  const { placement, tolerations, pullSecrets, priorityClassName } = options;
  return {
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    priorityClassName,
    affinity: { nodeAffinity: nodeAffinity(placement) },
    tolerations: [...hostTolerations(placement), ...tolerations],
    ...(pullSecrets.length > 0 && { imagePullSecrets: [...pullSecrets] }),
  };
}

function hostTolerations({ dedicatedTo }: Placement): Toleration[] {
  return [
    { key: HOST_KEY, operator: 'Equal', value: HOST_VALUE, effect: 'NoSchedule' },
    dedicatedTo === '*'
      ? { key: DEDICATED_KEY, operator: 'Exists', effect: 'NoSchedule' }
      : { key: DEDICATED_KEY, operator: 'Equal', value: dedicatedTo, effect: 'NoSchedule' },
  ];
}

/**
 * Returns the node affinity for a placement. If the placement requires one host, the affinity selects this host by its name. The Pod's
 * field `nodeName` is not used for this, because it would bypass the scheduler and the slots.
 */
function nodeAffinity(placement: Placement): NodeAffinity {
  const { architecture, dedicatedTo, required = [], preferred } = placement;
  const expressions: NodeSelectorRequirement[] = [
    { key: HOST_MARK, operator: 'In', values: [HOST_VALUE] },
    ...(architecture === undefined
      ? []
      : [{ key: 'kubernetes.io/arch', operator: 'In' as const, values: [architecture] }]),
    ...required,
  ];
  const dedicated: NodeSelectorRequirement[][] =
    dedicatedTo === '*'
      ? [[{ key: ONLY_NAMESPACE_LABEL, operator: 'DoesNotExist' }]]
      : [
          [{ key: DEDICATED_KEY, operator: 'DoesNotExist' }],
          [{ key: DEDICATED_KEY, operator: 'In', values: [dedicatedTo] }],
        ];
  const fields = nodeNameFields(placement);
  return {
    requiredDuringSchedulingIgnoredDuringExecution: {
      nodeSelectorTerms: dedicated.map((requirements) => ({
        matchExpressions: [...expressions, ...requirements],
        ...(fields.length > 0 && { matchFields: fields }),
      })),
    },
    ...(preferred !== undefined && {
      preferredDuringSchedulingIgnoredDuringExecution: [
        { weight: 100, preference: { matchExpressions: [preferred] } },
      ],
    }),
  };
}

/**
 * Returns the requirements on the name of the host. The required host comes first, because {@link hostOfJob} reads only the first
 * requirement.
 */
function nodeNameFields({ nodeName, avoidedNodes = [] }: Placement): NodeSelectorRequirement[] {
  const one: NodeSelectorRequirement[] =
    nodeName === undefined ? [] : [{ key: 'metadata.name', operator: 'In', values: [nodeName] }];
  return [
    ...one,
    ...avoidedNodes.map((name) => ({ key: 'metadata.name', operator: 'NotIn' as const, values: [name] })),
  ];
}

/** Index of Jobs by the only host that can do them. */
export const JOBS_BY_HOST = 'host';

/** Returns the keys of a Job for the index {@link JOBS_BY_HOST}: the name of its only host. If any host can do the Job, there is no key. */
export function hostOfJob({ spec }: Job): string[] {
  const { nodeAffinity: affinity } = spec.template.spec.affinity ?? {};
  const terms = affinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms;
  return terms?.[0]?.matchFields?.[0]?.values ?? [];
}
