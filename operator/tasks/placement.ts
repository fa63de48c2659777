/**
 * Builds the part of a Pod's spec that determines the hosts on which the Pod can run. The Pods of VMs and of tasks both have this part. Also
 * counts the slots of hosts. VMs, emulators and cache Jobs use one slot each.
 */
import { isDedicated } from '../../api/v1alpha1/hosts.ts';
import {
  DEDICATED_KEY,
  HOST_KEY,
  HOST_MARK,
  HOST_VALUE,
  ONLY_NAMESPACE_LABEL,
  SLOT_RESOURCE,
} from '../../api/v1alpha1/names.ts';
import type {
  Job,
  Namespace,
  Node,
  NodeAffinity,
  NodeSelectorRequirement,
  Pod,
  PodSpec,
  Toleration,
} from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { KubeObject } from '../../kube/objects.ts';

type Cached<T extends KubeObject> = Pick<Informer<T>, 'cache'>;

type Preference = NonNullable<NodeAffinity['preferredDuringSchedulingIgnoredDuringExecution']>[number];

export interface Placement {
  /**
   * Namespace whose dedicated hosts are allowed. The value `*` allows the dedicated hosts of every namespace, for Jobs of the system
   * namespace. Hosts that see only their own namespace are left out.
   */
  readonly dedicatedTo: string;
  /** Whether hosts that are dedicated to no namespace are left out. */
  readonly isStrict?: boolean | undefined;
  readonly architecture?: 'amd64' | 'arm64' | undefined;
  /** Name of the only allowed host. If it is undefined, any host is allowed. */
  readonly nodeName?: string | undefined;
  readonly avoidedNodes?: readonly string[];
  /** Names of the hosts on which earlier attempts failed, the last attempt first. Other hosts are preferred. */
  readonly failedNodes?: readonly string[];
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
  const { architecture, dedicatedTo, isStrict = false, required = [] } = placement;
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
          ...(isStrict ? [] : [[{ key: DEDICATED_KEY, operator: 'DoesNotExist' as const }]]),
          [{ key: DEDICATED_KEY, operator: 'In', values: [dedicatedTo] }],
        ];
  const fields = nodeNameFields(placement);
  const preferences = preferredHosts(placement);
  return {
    requiredDuringSchedulingIgnoredDuringExecution: {
      nodeSelectorTerms: dedicated.map((requirements) => ({
        matchExpressions: [...expressions, ...requirements],
        ...(fields.length > 0 && { matchFields: fields }),
      })),
    },
    ...(preferences.length > 0 && { preferredDuringSchedulingIgnoredDuringExecution: preferences }),
  };
}

/** Weight of the strongest preference, the largest that Kubernetes allows. */
const WEIGHT = 100;

/**
 * Returns the preferences among the allowed hosts. The weight halves with each earlier failure. So if the work failed on all hosts, the host
 * of the oldest failure is next. After seven hosts nothing of the weight is left, so the list is bounded.
 */
function preferredHosts({ preferred, failedNodes = [] }: Placement): Preference[] {
  const failures = failedNodes
    .map((name, index) => ({
      weight: Math.floor(WEIGHT / 2 ** index),
      preference: { matchFields: [{ key: 'metadata.name', operator: 'NotIn' as const, values: [name] }] },
    }))
    .filter(({ weight }) => weight > 0);
  const own =
    preferred === undefined ? [] : [{ weight: WEIGHT, preference: { matchExpressions: [preferred] } }];
  return [...own, ...failures];
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

/**
 * Returns true if a Node is a host, which can get machines, tasks and certificates. Only the label {@link HOST_MARK} makes a Node a host.
 */
export function isHost(node: Readonly<Node> | undefined): boolean {
  return node?.metadata.labels?.[HOST_MARK] === HOST_VALUE;
}

/** Index of the Nodes of hosts by the namespace to which they are dedicated. */
export const HOSTS_BY_NAMESPACE = 'namespace';

/** Returns the keys of a Node for the index {@link HOSTS_BY_NAMESPACE}. */
export function namespaceOfHost(node: Readonly<Node>): string[] {
  const { [DEDICATED_KEY]: namespace } = node.metadata.labels ?? {};
  return isHost(node) && namespace !== undefined ? [namespace] : [];
}

/** Returns whether VMs and tasks of the namespace run on its own hosts only, according to the caches. */
export function onlyOwnHosts(
  { nodes, namespaces }: { readonly nodes: Cached<Node>; readonly namespaces: Cached<Namespace> },
  namespace: string,
): boolean {
  const found = namespaces.cache.get(namespace) ?? { metadata: { name: namespace } };
  return isDedicated(found, nodes.cache.byIndex(HOSTS_BY_NAMESPACE, namespace));
}

/** Index of Jobs by the only host that can do them. */
export const JOBS_BY_HOST = 'host';

/** Returns the keys of a Job for the index {@link JOBS_BY_HOST}: the name of its only host. If any host can do the Job, there is no key. */
export function hostOfJob({ spec }: Job): string[] {
  const { nodeAffinity: affinity } = spec.template.spec.affinity ?? {};
  const terms = affinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms;
  return terms?.[0]?.matchFields?.[0]?.values ?? [];
}

/** Returns the number of slots that a host has. */
export function slotsOf(node: Readonly<Node> | undefined): number {
  return Number(node?.status?.allocatable?.[SLOT_RESOURCE] ?? 0);
}

/** Returns true if the Pod of a machine uses a slot of its host. */
export function holdsSlot({ status }: Readonly<Pod>): boolean {
  return status?.phase !== 'Failed' && status?.phase !== 'Succeeded';
}

export function asksForSlot({ containers }: Readonly<Pick<PodSpec, 'containers'>>): boolean {
  return containers.some(({ resources }) => resources?.requests?.[SLOT_RESOURCE] !== undefined);
}
