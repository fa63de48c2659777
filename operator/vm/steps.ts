/**
 * The steps of a VM. A step is a pure function of the observed state. It returns the requests to the API server, and how the reconcile
 * continues.
 */

import { isHost } from '../tasks/placement.ts';
import type { Pod, Secret } from '../../kube/core.ts';
import { isForced, type Unsaved } from '../../kube/objects.ts';
import type { PlanStep, StepResult as PodBackedStepResult } from '../podbacked/kind.ts';
import type { VMFacts } from './facts.ts';
import type { ObservedVM, Size } from './observe.ts';
import { blockedBy } from './status.ts';
import {
  API_VERSION,
  POD_FINALIZER,
  VM_FINALIZER,
  VNC_SECRET_KEY,
  VNC_SECRET_TYPE,
  vncSecretName,
} from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { aliveUntil, finishedAndDue } from './deadlines.ts';
import { isAbandoned, isReleasable, toRemember } from './abandoned.ts';
import { awaitedOn, type Desired, SHORTEST_GRACE_SECONDS } from '../../api/v1alpha1/machine.ts';
import { isReady } from '../host/observe.ts';
import { mustContinue } from './adoption.ts';
import { TERMINATION_GRACE_SECONDS } from '../podbacked/build.ts';
import { buildDesired, buildPod } from './pod.ts';
import {
  desiredOf,
  desiredText,
  hasEnded,
  hasRun,
  machineOf,
  podAttempt,
  terminated,
  waitingState,
} from '../podbacked/pod.ts';
import { isUnresolved, resolve } from './resolve.ts';
import { podSize, standingRefusal, wantedSize } from './size.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { desiredDisk } from './snapshots.ts';

export type VMWrite =
  | { readonly kind: 'addFinalizer' }
  | { readonly kind: 'removeFinalizer' }
  /**
   * `ignoredEntries` contains messages about registry entries that were ignored because of mistakes. The Pod might lack the credentials of
   * such an entry.
   */
  | { readonly kind: 'createPod'; readonly pod: Unsaved<Pod>; readonly ignoredEntries: readonly string[] }
  /**
   * A CREATE of the VNC Secret. If a Secret of this name already exists, the request also counts as a success. The operator cannot check
   * that Secret, because it has no right to read Secrets.
   */
  | { readonly kind: 'createSecret'; readonly secret: Unsaved<Secret> }
  /** A PATCH of `pods/resize`. A refusal is stored in {@link ObservedVM.resizeRefused}. */
  | { readonly kind: 'resizePod'; readonly size: Size }
  | { readonly kind: 'patchDesired'; readonly text: string }
  /** A DELETE of the Pod. Without `graceSeconds`, the Pod has its own grace period. 0 means that no agent can end the machine any more. */
  | { readonly kind: 'deletePod'; readonly graceSeconds: number | undefined }
  | { readonly kind: 'releasePod' }
  /** Stores the Pod that will continue the machine of the present Pod, as `successorOf` makes it. */
  | { readonly kind: 'saveSuccessor' }
  /** Tells the host to keep the VM's machine while it has no Pod, and keeps other VMs from the host meanwhile. */
  | { readonly kind: 'awaitPod' }
  /** Stores MAC addresses of abandoned machines on the Pod's Node. */
  | { readonly kind: 'rememberGivenUp'; readonly macAddresses: readonly string[] }
  /**
   * A DELETE that fails if the VM has changed since it was read, for example because somebody has just prolonged its life. `aliveUntil` is
   * set if the life of the VM is over. Its value is the end of that life, in milliseconds since the epoch.
   */
  | { readonly kind: 'deleteVM'; readonly aliveUntil?: number };

type StepResult = PodBackedStepResult<VMWrite>;
/** A step of a VM. */
type Step = PlanStep<ObservedVM, VMFacts, VMWrite>;

const NOTHING: StepResult = { writes: [], outcome: { kind: 'done' } };

function waitFor(what: string, ...writes: VMWrite[]): StepResult {
  return { writes, outcome: { kind: 'wait', for: what } };
}

function requeueAfter(milliseconds: number, ...writes: VMWrite[]): StepResult {
  return { writes, outcome: { kind: 'requeueAfter', milliseconds: Math.max(milliseconds, 0) } };
}

/** Adds the VM's finalizer. This step comes first, so that a VM cannot disappear while parts of it exist. */
function ensureFinalizer({ vm }: ObservedVM): StepResult {
  return vm.metadata.finalizers?.includes(VM_FINALIZER) === true
    ? NOTHING
    : { writes: [{ kind: 'addFinalizer' }], outcome: { kind: 'done' } };
}

/** Reason of the failure after which the operator deletes a VM that never ran. */
const NAT_FAILURE: Reason = 'NATSelfHealFailed';

/**
 * Deletes a VM whose life is over because nobody has prolonged it. Also deletes an ended VM: after a NAT failure immediately, and in other
 * cases when its TTL is over. This step uses only facts that the API server has stored.
 */
export function finish(observed: ObservedVM, _facts: VMFacts): StepResult {
  const until = aliveUntil(observed);
  if (until !== undefined && observed.now >= until) {
    return waitFor('the VM to go', { kind: 'deleteVM', aliveUntil: until });
  }
  const due = finishedAndDue(observed);
  const over = due !== undefined && observed.now >= due;
  return over || isNatFailure(observed) ? waitFor('the VM to go', { kind: 'deleteVM' }) : NOTHING;
}

/**
 * Returns true for a NAT failure of a VM that never ran. A VM that has run is not deleted after such a failure, because somebody might need
 * its disk.
 */
function isNatFailure({ vm: { status } }: ObservedVM): boolean {
  return status?.failure?.reason === NAT_FAILURE && status.firstRunningTime === undefined;
}

/**
 * Deletes a Pod that belongs to an earlier placement or to a failed VM. When a Pod is being deleted, also removes its finalizer, no matter
 * who deleted the Pod. The step uses only facts that are already in the VM's status.
 */
export function retirePod(observed: ObservedVM, _facts: VMFacts): StepResult {
  const { pod } = observed;
  if (pod === undefined) {
    return NOTHING;
  }
  if (pod.metadata.deletionTimestamp !== undefined) {
    return letGo(observed, pod);
  }
  return mustGo(observed, pod)
    ? waitFor('the Pod to end', {
        kind: 'deletePod',
        graceSeconds: isAbandoned(observed, pod) ? 0 : undefined,
      })
    : NOTHING;
}

/** Returns true if the Pod must be deleted. An ended Pod of a failed VM stays until the VM is deleted, so that users can read its log. */
function mustGo(observed: ObservedVM, pod: Pod): boolean {
  return wasGivenUp(observed, pod) || (observed.vm.status?.failure !== undefined && !hasEnded(pod));
}

/**
 * Returns true if the Pod belongs to an earlier placement and the Pod's machine never ran. If the machine ran, the VM keeps the Pod, because
 * this machine has the only disk of the VM. For example, a lost host can return and start the machine before its Pod is deleted.
 */
function wasGivenUp({ vm }: ObservedVM, pod: Pod): boolean {
  return (vm.status?.attempt ?? 1) > podAttempt(pod) && !hasRun(pod);
}

function letGo(observed: ObservedVM, pod: Pod): StepResult {
  if (pod.metadata.finalizers?.includes(POD_FINALIZER) !== true) {
    return waitFor('the Pod to go');
  }
  if (mustContinue(observed, pod) && !isAbandoned(observed, pod)) {
    return adopt(observed);
  }
  if (!isReleasable(observed, pod) || !factsAreWritten(observed, pod)) {
    return waitFor('the machine to end', ...tellEnd(observed, pod));
  }
  return isAbandoned(observed, pod)
    ? waitFor(
        'the Pod to go',
        ...remember(observed, pod),
        { kind: 'deletePod', graceSeconds: 0 },
        { kind: 'releasePod' },
      )
    : waitFor('the Pod to go', { kind: 'releasePod' });
}

/**
 * Lets the Pod of a running machine go, so that the machine can get another Pod. This needs a host that reports: the Node must be there, and
 * no other Pod may take the machine's slot meanwhile.
 */
function adopt({ vm, node }: ObservedVM): StepResult {
  if (!isHost(node) || node === undefined || !isReady(node)) {
    return waitFor('the host to return');
  }
  if (vm.status?.firstRunningTime === undefined) {
    return waitFor('the first run to be in the status');
  }
  const isAwaited = awaitedOn(node)[vm.metadata.uid ?? ''] !== undefined;
  return waitFor(
    'the Pod to go',
    { kind: 'saveSuccessor' },
    ...(isAwaited ? [] : [{ kind: 'awaitPod' } as const]),
    { kind: 'releasePod' },
  );
}

/**
 * Returns the request that tells the host to end the machine of a forcibly deleted Pod. Without it, the host keeps the machine, because such
 * a deletion alone is no order.
 */
function tellEnd({ vm }: ObservedVM, pod: Pod): VMWrite[] {
  const desired = desiredOf(pod);
  const isNeeded = isForced(pod) && terminated(pod) === undefined && desired?.deletion === undefined;
  const isDeleted = vm.metadata.deletionTimestamp !== undefined;
  const deletion = { graceSeconds: isDeleted ? graceOf(vm) : TERMINATION_GRACE_SECONDS };
  return isNeeded ? [{ kind: 'patchDesired', text: JSON.stringify({ ...desired, deletion }) }] : [];
}

/**
 * Returns the request that stores the machine's MAC address on the Node. The address must be stored before the Pod's finalizer is removed,
 * because only the Pod has the address.
 */
function remember(observed: ObservedVM, pod: Pod): VMWrite[] {
  const macAddresses = toRemember(observed, pod);
  return macAddresses === undefined ? [] : [{ kind: 'rememberGivenUp', macAddresses }];
}

function factsAreWritten(observed: ObservedVM, pod: Pod): boolean {
  const { vm } = observed;
  if (vm.metadata.deletionTimestamp !== undefined) {
    return true;
  }
  const { status } = vm;
  const runIsKnown = !hasRun(pod) || status?.firstRunningTime !== undefined;
  const endIsKnown = status?.failure !== undefined || wasGivenUp(observed, pod);
  return runIsKnown && endIsKnown;
}

/** Returns the seconds that the guest of a deleted VM gets. */
function graceOf({ spec }: VM): number {
  return spec.terminationGracePeriodSeconds ?? 0;
}

/** Deletes the Pod of a deleted VM. When the Pod no longer exists, removes the VM's own finalizer. */
export function deleteMachine(observed: ObservedVM): StepResult {
  const { pod } = observed;
  if (pod === undefined) {
    return { writes: [{ kind: 'removeFinalizer' }], outcome: { kind: 'gone' } };
  }
  const { deletionTimestamp, deletionGracePeriodSeconds = 0 } = pod.metadata;
  // For Kubernetes, 0 is no order to the host. The host treats the shortest other period as "at once".
  const graceSeconds = Math.max(graceOf(observed.vm), SHORTEST_GRACE_SECONDS);
  if (deletionTimestamp !== undefined && deletionGracePeriodSeconds <= graceSeconds) {
    return letGo(observed, pod);
  }
  return waitFor('the machine to end', {
    kind: 'deletePod',
    graceSeconds: isAbandoned(observed, pod) ? 0 : graceSeconds,
  });
}

/**
 * Time in milliseconds between attempts to create the Secret while the Secret of an earlier VM of the same name exists. No watch shows
 * when that Secret is deleted.
 */
const RECHECK_MILLISECONDS = 2_000;
/** Number of random bytes in a password. In base64url they are eight characters, and VNC uses no more than eight. */
const PASSWORD_BYTES = 6;

/**
 * Returns the request that creates the Secret with the VNC password. An existing Secret is not changed. The VM owns the Secret, so the
 * Secret is deleted together with the VM.
 */
function createVncSecret({ vm, random }: ObservedVM): VMWrite {
  const { name, namespace = '', uid = '' } = vm.metadata;
  const password = Buffer.from(random(), 'hex').subarray(0, PASSWORD_BYTES).toString('base64url');
  return {
    kind: 'createSecret',
    secret: {
      metadata: {
        name: vncSecretName(name),
        namespace,
        ownerReferences: [{ apiVersion: API_VERSION, kind: 'VM', name, uid, controller: true }],
      },
      type: VNC_SECRET_TYPE,
      immutable: true,
      stringData: { [VNC_SECRET_KEY]: password },
    },
  };
}

/**
 * Creates the Secret with the VNC password again while the host reports that this Secret is missing. An attempt has no effect while the
 * Secret of an earlier VM of the same name exists.
 */
export function ensureVncSecret(observed: ObservedVM, { failure }: VMFacts): StepResult {
  const { pod } = observed;
  const isMissed = pod !== undefined && waitingState(pod).reason === 'VNCSecretNotFound';
  const isAsked =
    isMissed && machineOf(pod)?.automaticPorts.some(({ purpose }) => purpose === 'vnc') === true;
  return isAsked && failure === undefined
    ? requeueAfter(RECHECK_MILLISECONDS, createVncSecret(observed))
    : NOTHING;
}

/** Time in milliseconds between two checks while the Pod of another object has the VM's name. No watch shows when this Pod is deleted. */
const NAME_TAKEN_RECHECK_MILLISECONDS = 5_000;
/** Time in milliseconds between two checks of a silent host whose machine needs a Pod. While there is no Pod, no watch finds the VM. */
const HOST_RECHECK_MILLISECONDS = 5_000;

/** Returns true if the VM has no Pod, never ran and has not failed. */
export function needsPod({ pod }: ObservedVM, { failure, firstRunningTime }: VMFacts): boolean {
  return pod === undefined && failure === undefined && firstRunningTime === undefined;
}

/**
 * Creates the Pod that continues the machine of the VM, when its host reports. The VM had another Pod that somebody deleted by force.
 */
function continueMachine({ vm, node, successor }: ObservedVM): StepResult {
  if (successor === undefined) {
    return NOTHING;
  }
  if (!isHost(node) || node === undefined || !isReady(node)) {
    return requeueAfter(HOST_RECHECK_MILLISECONDS);
  }
  const isAwaited = awaitedOn(node)[vm.metadata.uid ?? ''] !== undefined;
  return {
    writes: [
      ...(isAwaited ? [] : [{ kind: 'awaitPod' } as const]),
      { kind: 'createPod', pod: successor, ignoredEntries: [] },
    ],
    outcome: { kind: 'done' },
  };
}

/** Resolves the settings of the VM and creates its Pod, unless the VM has a Pod, ran before or has failed. */
export function deploy(observed: ObservedVM, facts: VMFacts): StepResult {
  const { vm, nameTakenBy, config, clusterUid, random } = observed;
  if (!needsPod(observed, facts)) {
    return NOTHING;
  }
  if (nameTakenBy !== undefined) {
    const message = `The name of the VM, ${vm.metadata.name}, is used by ${nameTakenBy}`;
    return {
      ...requeueAfter(NAME_TAKEN_RECHECK_MILLISECONDS),
      blocked: { condition: 'Scheduled', reason: 'PodNameTaken', message },
    };
  }
  const resolved = resolve(observed);
  if (isUnresolved(resolved)) {
    return { ...waitFor(resolved.message), blocked: blockedBy(resolved) };
  }
  const { attempt, avoidedNodes } = facts;
  const isDedicated = observed.isDedicated();
  const options = { vm, resolved, attempt, avoidedNodes, isDedicated, config, clusterUid, random };
  const built = buildPod(options);
  const secrets: VMWrite[] = resolved.vncHostPort ? [createVncSecret(observed)] : [];
  const { ignoredEntries } = resolved;
  return {
    writes: [...secrets, { kind: 'createPod', pod: built, ignoredEntries }],
    outcome: { kind: 'done' },
  };
}

/**
 * Asks the API server to give the Pod the size that the VM requests. The scheduler and ResourceQuota therefore know the size before the
 * host does. If the API server refuses the size, the other steps continue, and the operator requests the size again later.
 */
function resize(observed: ObservedVM, facts: VMFacts): StepResult {
  const { pod, now } = observed;
  const ended = pod === undefined || hasEnded(pod) || pod.metadata.deletionTimestamp !== undefined;
  const size = wantedSize(observed);
  if (ended || facts.failure !== undefined || size === undefined) {
    return NOTHING;
  }
  const refused = standingRefusal(observed);
  return refused !== undefined && now < refused.retryAt
    ? NOTHING
    : { writes: [{ kind: 'resizePod', size }], outcome: { kind: 'done' } };
}

/**
 * Writes the annotation with the desired state of the machine for the agent. CPU and memory come from the Pod's requests, and the disk size
 * comes from the VM.
 */
export function desire(observed: ObservedVM, facts: VMFacts): StepResult {
  const { vm, pod, powered } = observed;
  const ended = pod === undefined || hasEnded(pod) || pod.metadata.deletionTimestamp !== undefined;
  if (ended || facts.failure !== undefined) {
    return NOTHING;
  }
  const current = desiredOf(pod);
  if (current === undefined || (isGoingOff(powered) && current.powerState !== 'Running')) {
    return NOTHING;
  }
  const wanted = JSON.stringify(buildDesired(vm, size(vm, pod, current), desiredDisk(observed)));
  return wanted === desiredText(pod)
    ? NOTHING
    : { writes: [{ kind: 'patchDesired', text: wanted }], outcome: { kind: 'done' } };
}

/** Returns true while Berth switches the host off. A machine that is off must not start then, because the power would end it. */
function isGoingOff(powered: ObservedVM['powered']): boolean {
  return powered?.state === 'Leaving' || powered?.state === 'Off';
}

/**
 * Returns the size of the machine. The disk never gets smaller, even if the VM requests a smaller size. A VM can do so if its first disk
 * size came from a VMConfig.
 */
function size({ spec }: VM, pod: Pod, current: Desired): Parameters<typeof buildDesired>[1] {
  const before = current.diskSizeBytes === undefined ? undefined : BigInt(current.diskSizeBytes);
  const requested = spec.diskSize === undefined ? undefined : parseQuantity(spec.diskSize);
  const isSmaller = before !== undefined && requested !== undefined && requested < before;
  const { cpu, memoryBytes } = podSize(pod) ?? current;
  return {
    cpu,
    memoryBytes: BigInt(memoryBytes),
    diskSizeBytes: isSmaller ? before : (requested ?? before),
  };
}

export function stepsFor({ vm }: ObservedVM): readonly Step[] {
  return vm.metadata.deletionTimestamp === undefined
    ? [ensureFinalizer, finish, retirePod, continueMachine, deploy, resize, desire, ensureVncSecret]
    : [deleteMachine];
}
