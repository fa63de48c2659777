/** Plans the next request to the API server for an Emulator. All functions are pure. */
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import { isLost } from '../podbacked/observe.ts';
import { hasEnded, TIMEOUT } from '../podbacked/pod.ts';
import { belongsToAnother, hostFault, ownerOf, pairingOf } from './pairing.ts';
import type { Blocked as PodBackedBlocked, StepResult } from '../podbacked/kind.ts';
import type { ObservedEmulator } from './observe.ts';
import { hostOfPod } from './pod.ts';
import { refusalOf } from './facts.ts';

export type EmulatorWrite =
  /** Adds the finalizer, and an owner reference that names the VM. */
  | { readonly kind: 'adopt' }
  | { readonly kind: 'createPod'; readonly host: string }
  /** If `force` is true, the operator deletes the Pod without waiting for its host, because no agent will end the Pod. */
  | { readonly kind: 'deletePod'; readonly force: boolean }
  | { readonly kind: 'deleteEmulator' }
  | { readonly kind: 'removeFinalizer' };

/** Reason why the Emulator has no Pod, for the condition Scheduled. */
export type EmulatorBlocked = Omit<PodBackedBlocked, 'condition'>;

export interface EmulatorPlan {
  /** The next request. It is undefined if no request is needed until an observed object changes. */
  readonly write?: EmulatorWrite | undefined;
  readonly blocked?: EmulatorBlocked | undefined;
}

/** The only step of an Emulator: its reconcile sends at most one request. */
export function nextStep(observed: ObservedEmulator): StepResult<EmulatorWrite> {
  const { write, blocked } = plan(observed);
  const isGoing = write?.kind === 'deleteEmulator' || write?.kind === 'removeFinalizer';
  return {
    writes: write === undefined ? [] : [write],
    outcome: { kind: isGoing ? 'gone' : 'done' },
    blocked: blocked && { condition: 'Scheduled', ...blocked },
  };
}

export function plan(observed: ObservedEmulator): EmulatorPlan {
  const { emulator, pod } = observed;
  if (emulator.metadata.deletionTimestamp !== undefined) {
    return { write: pod === undefined ? release(observed) : endPod(observed) };
  }
  const pairing = pairingOf(observed);
  switch (pairing.kind) {
    case 'missing':
      return withoutVM(observed, { reason: 'VMNotFound', message: pairing.message });
    case 'ended':
      return withoutVM(observed, { reason: 'VMNotRunning', message: pairing.message });
    case 'held': {
      const blocked: EmulatorBlocked = { reason: 'VMNotRunning', message: pairing.message };
      const write = mustEnd(observed, pairing.host) ? endPod(observed) : adoption(observed);
      return pod === undefined ? { write, blocked } : { write };
    }
    case 'running':
    default:
      return besideVM(observed, pairing.host);
  }
}

/** Returns true if the next request ends the emulator, because its VM does not exist or does not run. */
export function endsWithVM(observed: ObservedEmulator): boolean {
  const { kind } = plan(observed).write ?? {};
  const isEnd = kind === 'deletePod' || kind === 'deleteEmulator';
  const isAsked = observed.emulator.metadata.deletionTimestamp !== undefined;
  return isEnd && !isAsked && ['ended', 'missing'].includes(pairingOf(observed).kind);
}

/**
 * Plans the next request for an Emulator whose VM does not exist or does not run: the Pod of the Emulator must end. With `whenVMStops:
 * Delete`, the Emulator is deleted.
 */
function withoutVM(observed: ObservedEmulator, blocked: EmulatorBlocked): EmulatorPlan {
  const { emulator, pod } = observed;
  const { spec, status } = emulator;
  // An Emulator without a Pod and without a failure is not deleted. Perhaps it was created together with its VM, and must wait for the
  // first run of the VM.
  const wasPlaced = pod !== undefined || status?.failure !== undefined;
  if (spec.whenVMStops === 'Delete' && wasPlaced) {
    return { write: { kind: 'deleteEmulator' }, blocked };
  }
  return { write: endPod(observed) ?? adoption(observed), blocked };
}

/** Plans the next request for an Emulator whose VM runs on `host`. */
function besideVM(observed: ObservedEmulator, host: string): EmulatorPlan {
  const { emulator, vmNode, pod, config } = observed;
  const adopted = adoption(observed);
  if (adopted !== undefined) {
    return { write: adopted };
  }
  if (mustEnd(observed, host)) {
    return { write: endPod(observed) };
  }
  const fault = hostFault(vmNode, emulator.spec, config);
  if (pod === undefined) {
    return withoutPod(observed, host, fault);
  }
  const refusal = refusalOf(pod, observed.now);
  if (refusal !== undefined) {
    const { reason, message, retryAt } = refusal;
    return { write: observed.now >= retryAt ? endPod(observed) : undefined, blocked: { reason, message } };
  }
  const waits = pod.spec.nodeName === undefined;
  return waits && fault !== undefined ? { write: endPod(observed), blocked: fault } : {};
}

/** Plans the next request for an Emulator without a Pod. `fault` is the reason why the host of the VM cannot run the Emulator. */
function withoutPod(
  { emulator, isNameTaken }: ObservedEmulator,
  host: string,
  fault: EmulatorBlocked | undefined,
): EmulatorPlan {
  if (emulator.status?.failure?.reason === TIMEOUT) {
    return {};
  }
  if (isNameTaken) {
    const message = `The Pod of a deleted Emulator with the same name, ${emulator.metadata.name}, is still ending`;
    return { blocked: { reason: 'PodNameTaken', message } };
  }
  return fault === undefined ? { write: { kind: 'createPod', host } } : { blocked: fault };
}

/**
 * Returns true if the Pod must end even if the VM runs. There are three cases: the Pod is being deleted, the host of the Pod is not the
 * host of the VM, or the emulator was not Running in time. The function uses only facts that are already in the status. An ended Pod of a
 * failed emulator stays, so that users can read its log.
 */
function mustEnd({ emulator, pod }: ObservedEmulator, host: string | undefined): boolean {
  if (pod === undefined) {
    return false;
  }
  const isElsewhere = host !== undefined && hostOfPod(pod) !== host;
  const isTooLate = emulator.status?.failure?.reason === TIMEOUT && !hasEnded(pod);
  return pod.metadata.deletionTimestamp !== undefined || isElsewhere || isTooLate;
}

/** Returns the request that ends the Pod. The result is undefined if there is no Pod, or if its agent is already ending it. */
function endPod(observed: ObservedEmulator): EmulatorWrite | undefined {
  const { pod } = observed;
  const force = isAbandoned(observed);
  const isEnding = pod === undefined || pod.metadata.deletionTimestamp !== undefined;
  return force || !isEnding ? { kind: 'deletePod', force } : undefined;
}

/** Returns true if, according to the objects in Kubernetes, no agent will end the Pod any more. */
function isAbandoned(observed: ObservedEmulator): boolean {
  const isBound = observed.pod?.spec.nodeName !== undefined;
  return isBound && (observed.isGivenUp || isLost(observed));
}

/**
 * Returns the request that adds the finalizer and makes the VM the owner of the Emulator. The result is undefined if the Emulator already
 * has both, if the Emulator belongs to another VM, or if the VM is being deleted.
 */
function adoption({ emulator, vm }: ObservedEmulator): EmulatorWrite | undefined {
  if (vm === undefined || vm.metadata.deletionTimestamp !== undefined || belongsToAnother(emulator, vm)) {
    return undefined;
  }
  const isTied = hasFinalizer(emulator) && ownerOf(emulator) !== undefined;
  return isTied ? undefined : { kind: 'adopt' };
}

function release({ emulator }: ObservedEmulator): EmulatorWrite | undefined {
  return hasFinalizer(emulator) ? { kind: 'removeFinalizer' } : undefined;
}

function hasFinalizer({ metadata }: Emulator): boolean {
  return metadata.finalizers?.includes(VM_FINALIZER) === true;
}
