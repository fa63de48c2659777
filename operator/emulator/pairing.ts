/**
 * Derives from the state of a VM whether the VM's Emulator must run, and on which host, and from the Node of this host whether it can run
 * there. All functions are pure.
 */
import type { Emulator, EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import {
  EMULATORS_CONDITION,
  GROUP,
  SYSTEM_IMAGE_LABEL_PREFIX,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import type { Condition } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { machineReport } from '../podbacked/pod.ts';
import { type ObservedEmulator, resolveSpec } from './observe.ts';
import { stopsOf } from './pod.ts';
import { systemImageName } from '../../api/v1alpha1/emulatormachine.ts';
import { equal } from '../../kube/mergepatch.ts';
import type { OperatorConfig } from '../config/config.ts';

/** The parts of a VM's state that matter for its Emulator. */
export type Pairing =
  /** The VM of the Emulator does not exist. This is also the case if the VM was deleted and a later VM has the same name. */
  | { readonly kind: 'missing'; readonly message: string }
  /** The VM does not run, and its emulators must not run either. */
  | { readonly kind: 'ended'; readonly message: string }
  /**
   * The VM is changing its state, or its host is lost. An existing Pod of the Emulator stays on the VM's host, but the operator creates no
   * new Pod. The field `host` is undefined while the cache does not show the VM's Pod.
   */
  | { readonly kind: 'held'; readonly host: string | undefined; readonly message: string }
  | { readonly kind: 'running'; readonly host: string };

/** Temporary phases of a VM, for example of a VM that restarts. The VM keeps its Pod and its host in these phases. */
const BETWEEN: ReadonlySet<string | undefined> = new Set(['Stopping', 'Suspending', 'Resuming', 'Starting']);

export function pairingOf(observed: Pick<ObservedEmulator, 'emulator' | 'vm' | 'vmPod' | 'pod'>): Pairing {
  const { emulator, vm, vmPod } = observed;
  const { vmName } = emulator.spec;
  if (vm === undefined) {
    const message = `VM ${vmName} was not found in namespace ${emulator.metadata.namespace}`;
    return { kind: 'missing', message };
  }
  if (belongsToAnother(emulator, vm)) {
    const message = `The VM ${vmName} of this Emulator was deleted, and another VM has its name now`;
    return { kind: 'missing', message };
  }
  // The message does not name the phase of the VM. Otherwise each change of the phase would cause a request that stores the new message.
  const message = `VM ${vmName} is not running. The emulator starts when the VM is Running`;
  if (hasStopped(vm) || hasStoppedMeanwhile(observed)) {
    return { kind: 'ended', message };
  }
  // The cache of Pods can lag behind the status of the VM. Therefore the Emulator's Pod stays even if the cache has no Pod of this VM, or
  // only the Pod of an earlier VM. If the VM has really lost its Pod, the next status of the VM shows this.
  return besideHost(vm, isOfVM(vmPod, vm) ? vmPod : undefined, message);
}

function besideHost({ status }: VM, pod: Pod | undefined, message: string): Pairing {
  const host = pod?.spec.nodeName;
  const isSteady = status?.phase === 'Running' && pod?.metadata.deletionTimestamp === undefined;
  return isSteady && host !== undefined ? { kind: 'running', host } : { kind: 'held', host, message };
}

/** Returns true if the Emulator belongs to an earlier VM that was deleted, and `vm` is a later VM of the same name. */
export function belongsToAnother(emulator: Emulator, vm: VM): boolean {
  const owner = ownerOf(emulator);
  return owner !== undefined && owner.uid !== vm.metadata.uid;
}

function hasStopped(vm: VM): boolean {
  const { phase, failure } = vm.status ?? {};
  const isOver = vm.metadata.deletionTimestamp !== undefined || failure !== undefined;
  return isOver || !(phase === 'Running' || BETWEEN.has(phase) || isHostLost(vm));
}

/** Returns true if the VM was stopped after the Emulator's Pod was created, even if the VM runs again. */
function hasStoppedMeanwhile({ vmPod, pod }: Pick<ObservedEmulator, 'vmPod' | 'pod'>): boolean {
  const before = pod && stopsOf(pod);
  const { stops } = machineReport(vmPod);
  return before !== undefined && stops !== undefined && before !== stops;
}

/** Returns the Emulator's owner reference that names the VM. The result is undefined while the Emulator has no such reference. */
export function ownerOf({ metadata, spec }: Readonly<Emulator>) {
  return metadata.ownerReferences?.find(
    ({ apiVersion, kind, name }) =>
      kind === 'VM' && name === spec.vmName && apiVersion.startsWith(`${GROUP}/`),
  );
}

/** Reasons of a VM's condition Ready while its host does not respond. */
const HOST_TROUBLES: ReadonlySet<string> = new Set<Reason>(['HostUnreachable', 'HostPoweredOff', 'HostLost']);

/**
 * Returns the VM's condition Ready while the VM's host does not respond, otherwise undefined. The Emulator's condition Ready gets the same
 * reason.
 */
export function hostTrouble(vm: VM | undefined): Condition | undefined {
  const ready = conditionIn(vm?.status, 'Ready');
  return HOST_TROUBLES.has(ready?.reason ?? '') ? ready : undefined;
}

function isHostLost(vm: VM): boolean {
  return vm.status?.phase === 'Failed' && hostTrouble(vm)?.reason === 'HostLost';
}

function isOfVM(pod: ObservedEmulator['vmPod'], vm: VM): boolean {
  return pod?.metadata.labels?.[VM_UID_LABEL] === vm.metadata.uid;
}

/** Largest number of system images that a message names. */
const IMAGES_NAMED = 10;

interface HostFault {
  readonly reason: Reason;
  readonly message: string;
}

/**
 * Returns the reason why this host cannot run the Emulator. The result is undefined if the host can run the Emulator. The Nodes of
 * simulated hosts, and of hosts with an earlier release, have no condition about emulators. If the architecture of such a host is allowed,
 * the operator assumes that the host can run every Emulator.
 */
export function hostFault(
  node: Node | undefined,
  spec: EmulatorSpec,
  config: OperatorConfig,
): HostFault | undefined {
  return node === undefined ? undefined : (wrongArchitecture(node, config) ?? withoutImage(node, spec));
}

function wrongArchitecture({ metadata, status }: Node, { emulators }: OperatorConfig): HostFault | undefined {
  const architecture = metadata.labels?.['kubernetes.io/arch'] ?? status?.nodeInfo?.architecture;
  const allowed: readonly string[] = emulators.architectures;
  if (architecture === undefined || allowed.includes(architecture)) {
    return undefined;
  }
  return {
    reason: 'ArchitectureNotAllowed',
    message: `Host ${metadata.name} has the architecture ${architecture}. The operator allows emulators only on ${allowed.join(' and ')} hosts`,
  };
}

function withoutImage(node: Node, spec: EmulatorSpec): HostFault | undefined {
  const { name } = node.metadata;
  const { status, message = '' } = conditionIn(node.status, EMULATORS_CONDITION) ?? {};
  if (status === 'False') {
    return { reason: 'HostWithoutEmulators', message: `Host ${name} runs no emulators: ${message}` };
  }
  const wanted = systemImageName(resolveSpec(spec));
  const present = systemImagesOf(node);
  if (status !== 'True' || present.includes(wanted)) {
    return undefined;
  }
  const missing = `Host ${name} has no system image ${wanted}; it has ${namesOf(present)}`;
  return { reason: 'SystemImageMissing', message: missing };
}

function namesOf(images: readonly string[]): string {
  const named = images.toSorted().slice(0, IMAGES_NAMED).join(', ') || 'none';
  return images.length > IMAGES_NAMED ? `${named} and ${images.length - IMAGES_NAMED} more` : named;
}

function systemImagesOf({ metadata: { labels = {} } }: Readonly<Node>): string[] {
  return Object.keys(labels)
    .filter((label) => label.startsWith(SYSTEM_IMAGE_LABEL_PREFIX))
    .map((label) => label.slice(SYSTEM_IMAGE_LABEL_PREFIX.length));
}

/**
 * Returns true if the host's list of system images changed. The list is in the labels of the Node, and `hostStateChanged` ignores labels.
 */
export function systemImagesChanged(before: Readonly<Node> | undefined, after: Readonly<Node>): boolean {
  return before === undefined || !equal(systemImagesOf(before), systemImagesOf(after));
}
