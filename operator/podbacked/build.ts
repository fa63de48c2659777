/** Builds the parts of a Pod that the Pods of VMs and Emulators both have. */
import {
  API_VERSION,
  DESIRED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONTAINER,
} from '../../api/v1alpha1/names.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import type { Container, PodSpec, Toleration } from '../../kube/core.ts';
import type { ObjectMeta } from '../../kube/objects.ts';
import { hostPodSpec, type Placement } from '../tasks/placement.ts';
import type { OperatorConfig } from '../config/config.ts';

/** Tolerations for the taints not-ready and unreachable. They have no time limit, because a host that reboots must not lose its VMs. */
export const REBOOTING: readonly Toleration[] = [
  { key: 'node.kubernetes.io/not-ready', operator: 'Exists', effect: 'NoExecute' },
  { key: 'node.kubernetes.io/unreachable', operator: 'Exists', effect: 'NoExecute' },
];

/** Time in seconds that a guest gets for its shutdown when its object is deleted. Kubernetes has the same default for Pods. */
export const TERMINATION_GRACE_SECONDS = 30;

/**
 * Returns the metadata of a machine's Pod, without its name and labels. The object of the machine owns the Pod, which is deleted with it. The
 * two annotations are for the agent of the host.
 */
export function machineMetadata(
  kind: 'VM' | 'Emulator',
  { name, namespace = '', uid = '' }: ObjectMeta,
  machine: object,
  desired: Desired,
): Pick<ObjectMeta, 'ownerReferences'> & { namespace: string; annotations: Record<string, string> } {
  return {
    namespace,
    annotations: {
      [MACHINE_ANNOTATION]: JSON.stringify(machine),
      [DESIRED_ANNOTATION]: JSON.stringify(desired),
    },
    ownerReferences: [
      { apiVersion: API_VERSION, kind, name, uid, controller: true, blockOwnerDeletion: true },
    ],
  };
}

export interface MachineSpecOptions extends Required<Pick<PodSpec, 'volumes'>> {
  readonly placement: Placement;
  readonly pullSecrets: readonly { readonly name: string }[];
  readonly config: Pick<OperatorConfig, 'priorityClassName'>;
  /** Amounts that the machine requests from its host, by resource. */
  readonly resources: Record<string, string>;
  /** What else the container of the machine has. */
  readonly container: Omit<Container, 'name' | 'imagePullPolicy' | 'resources'>;
}

/** Returns the spec of a machine's Pod. */
export function machineSpec({
  placement,
  pullSecrets,
  config: { priorityClassName },
  resources,
  container,
  volumes,
}: MachineSpecOptions): PodSpec {
  return {
    ...hostPodSpec({ placement, tolerations: REBOOTING, pullSecrets, priorityClassName }),
    terminationGracePeriodSeconds: TERMINATION_GRACE_SECONDS,
    containers: [
      {
        ...container,
        name: MACHINE_CONTAINER,
        imagePullPolicy: 'IfNotPresent',
        // Requests and limits are equal, so that the namespace can have a quota for limits, or a LimitRange with smaller default limits.
        resources: { requests: resources, limits: resources },
      },
    ],
    volumes,
  };
}
