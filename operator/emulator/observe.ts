/** Reads from caches everything that one reconcile of an Emulator needs. A Node that is not in the cache is read from the API server. */
import type { Emulator, EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import { EMULATOR_UID_LABEL, emulatorPodName } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type Node, type Pod, PODS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { PODS_BY_NODE } from '../host/observe.ts';
import { asksForSlot, holdsSlot, isHost } from '../tasks/placement.ts';
import { type HostSources, type PodObserved, reachOf } from '../podbacked/observe.ts';
import { EMULATOR_DEFAULTS } from '../../api/v1alpha1/fields.ts';

/** The state that one reconcile of an Emulator observes. The plan and the status are pure functions of this state. */
export interface ObservedEmulator extends PodObserved {
  readonly emulator: Emulator;
  /**
   * VM with the name `spec.vmName`. Its uid differs from the uid in the Emulator's owner reference if the Emulator belongs to an earlier VM
   * of the same name.
   */
  readonly vm: VM | undefined;
  readonly vmPod: Pod | undefined;
  /** Node of the VM's Pod. */
  readonly vmNode: Node | undefined;
  /**
   * Whether the Pod of a deleted Emulator with the same name still exists. Until that Pod is gone, the Pod of this Emulator cannot be
   * created.
   */
  readonly isNameTaken: boolean;
  /** Returns how many slots of a host are in use by Pods. */
  readonly slotsTaken: (host: string) => number;
}

export interface EmulatorSources extends HostSources {
  readonly vms: Informer<VM>;
  /** Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly emulators: Informer<Emulator>;
  readonly emulatorPods: Informer<Pod>;
  readonly taskPods: Informer<Pod>;
  readonly config: OperatorConfig;
}

/** Returns the key of the Emulator's Pod from the key of the Emulator. Both keys are `namespace/name`. */
export function podKeyOf(emulatorKey: string): string {
  return emulatorPodName(emulatorKey);
}

/** Returns the key of the Emulator from the key of its Pod. */
export function emulatorKeyOf(podKey: string): string {
  return podKey.slice(0, podKey.length - emulatorPodName('').length);
}

/** Returns the key of the Emulator's VM. */
export function vmKeyOf({ metadata, spec }: Readonly<Emulator>): string {
  return `${metadata.namespace}/${spec.vmName}`;
}

/**
 * Reads the state that one reconcile of the Emulator needs.
 * @throws ApiError when the Node of the Emulator's Pod is not in the cache and cannot be read
 */
export async function observe(sources: EmulatorSources, emulator: Emulator): Promise<ObservedEmulator> {
  const { vms, pods, emulatorPods, nodes, config } = sources;
  const named = emulatorPods.cache.get(podKeyOf(keyOf(emulator)));
  const isOurs = isPodOf(named, emulator);
  const pod = isOurs ? named : undefined;
  const vmPod = pods.cache.get(vmKeyOf(emulator));
  return {
    ...(await reachOf(sources, pod?.spec.nodeName)),
    emulator,
    vm: vms.cache.get(vmKeyOf(emulator)),
    vmPod,
    vmNode: nodes.cache.get(vmPod?.spec.nodeName ?? ''),
    pod,
    isNameTaken: named !== undefined && !isOurs,
    slotsTaken: (host) => slotsTaken(sources, host),
    hosts: () => nodes.cache.list().filter(isHost),
    config,
    now: sources.clock(),
  };
}

/**
 * Returns the observed state with the VM and its Pod from the API server.
 * @throws ApiError when a request fails
 */
export async function withCurrentVM(
  { client, nodes }: Pick<EmulatorSources, 'client' | 'nodes'>,
  observed: ObservedEmulator,
): Promise<ObservedEmulator> {
  const ref = refOf(vmKeyOf(observed.emulator));
  const [vm, vmPod] = await Promise.all([
    unlessMissing(client.get(VMS, ref)),
    unlessMissing(client.get(PODS, ref)),
  ]);
  return { ...observed, vm, vmPod, vmNode: nodes.cache.get(vmPod?.spec.nodeName ?? '') };
}

/** Returns true if the Pod belongs to this Emulator, and not to an earlier Emulator of the same name. */
function isPodOf(pod: Readonly<Pod> | undefined, { metadata }: Readonly<Emulator>): boolean {
  return pod?.metadata.labels?.[EMULATOR_UID_LABEL] === metadata.uid;
}

function slotsTaken({ pods, emulatorPods, taskPods }: EmulatorSources, host: string): number {
  const bound = [pods, emulatorPods, taskPods].flatMap(({ cache }) => cache.byIndex(PODS_BY_NODE, host));
  return bound.filter((pod) => holdsSlot(pod) && asksForSlot(pod.spec)).length;
}

type ResolvedSpec = { readonly [Field in keyof EmulatorSpec]-?: NonNullable<EmulatorSpec[Field]> };

export function resolveSpec(spec: EmulatorSpec): ResolvedSpec {
  // If the spec omits a field, the default of this field stays. A field with the value undefined would replace the default, but the API
  // server never stores such a field.
  return { ...EMULATOR_DEFAULTS, ...spec } as ResolvedSpec;
}
