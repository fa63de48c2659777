/** Derives from the state of a VM whether the VM's Emulator must run, and on which host. All functions are pure. */
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { GROUP, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Pod } from '../../kube/core.ts';
import type { Condition } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { machineReport } from '../vm/podstate.ts';
import type { Observed } from './observe.ts';
import { stopsOf } from './pod.ts';

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

export function pairingOf(observed: Pick<Observed, 'emulator' | 'vm' | 'vmPod' | 'pod'>): Pairing {
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
function hasStoppedMeanwhile({ vmPod, pod }: Pick<Observed, 'vmPod' | 'pod'>): boolean {
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

function isOfVM(pod: Observed['vmPod'], vm: VM): boolean {
  return pod?.metadata.labels?.[VM_UID_LABEL] === vm.metadata.uid;
}
