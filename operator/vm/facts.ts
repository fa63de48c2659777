/**
 * Gathers the facts of a VM: the time of its first run, the number of its attempts on hosts, and its end. The VM's status stores these
 * facts. A later reconcile uses the stored facts, but never the conditions or the phase in the status.
 */
import { timestamp } from '../../base/time.ts';
import { classOf, type Reason } from '../../api/v1alpha1/reasons.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Pod } from '../../kube/core.ts';
import { endOfLimit } from '../host/observe.ts';
import { isTooLate, mustContinue } from './adoption.ts';
import type { ObservedVM } from './observe.ts';
import {
  boundTime,
  type End,
  endOf,
  firstRun,
  hasEnded,
  hasRun,
  lastReport,
  podAttempt,
  TIMEOUT,
} from '../podbacked/pod.ts';
import { findConfig } from './resolve.ts';
import { isLost } from '../podbacked/observe.ts';

export interface VMFacts {
  readonly firstRunningTime: string | undefined;
  readonly attempt: number;
  readonly avoidedNodes: readonly string[];
  readonly failure: VMFailure | undefined;
}

export type VMFailure = NonNullable<VMStatus['failure']>;

/**
 * Reasons why a Pod was lost before its host reported the end of the machine. If the VM never ran, it is placed on a host again after such
 * a loss, any number of times.
 */
const LOST: ReadonlySet<string> = new Set<Reason>(['PodDeleted', 'Evicted', 'HostLost']);
/** Largest number of times that a VM is placed again because its host refused it. */
const MAXIMUM_REPLACEMENTS = 3;
/** Reasons of the DisruptionTarget condition on a Pod that is being evicted. */
const EVICTED = new Set([
  'EvictionByEvictionAPI',
  'DeletionByTaintManager',
  'PreemptionByScheduler',
  'TerminationByKubelet',
]);

/** Returns the facts in the status together with the facts that this reconcile finds. */
export function gatherFacts(observed: ObservedVM): VMFacts {
  const before = knownFacts(observed);
  if (before.failure !== undefined || observed.vm.metadata.deletionTimestamp !== undefined) {
    return before;
  }
  const { pod } = observed;
  const ended = pod === undefined ? vanished(observed, before) : podEnd(observed, pod);
  if (ended !== undefined && pod !== undefined && mayPlaceAgain(observed, before, pod, ended)) {
    return placedAgain(before, pod, ended);
  }
  const failed = ended ?? expired(observed, before);
  return failed === undefined ? before : { ...before, failure: { ...failed, time: timestamp(observed.now) } };
}

function knownFacts(observed: ObservedVM): VMFacts {
  const { status = {} } = observed.vm;
  return {
    firstRunningTime: status.firstRunningTime ?? firstRun(observed),
    attempt: status.attempt ?? 1,
    avoidedNodes: status.avoidedNodes ?? [],
    failure: status.failure,
  };
}

/**
 * Returns the failure of a VM that ran before and has no Pod any more. This happens if somebody removed the operator's finalizer and the
 * Pod was deleted. The result is undefined for a VM that never ran, and while the next Pod of its machine can still be created in time.
 */
function vanished(observed: ObservedVM, facts: VMFacts): End | undefined {
  if (facts.firstRunningTime === undefined || (observed.successor !== undefined && !isTooLate(observed))) {
    return undefined;
  }
  const message =
    observed.successor === undefined
      ? 'Somebody removed the Pod of the VM. The disk of the VM is lost'
      : `Somebody deleted the Pod of the VM by force, and its next Pod was not created in ${observed.config.hostLostTimeoutSeconds} s. The disk of the VM is lost`;
  return { reason: 'PodDeleted', message };
}

/**
 * Returns the final state of a Pod that has ended or certainly will end, because it is deleted or its host is lost. The result is undefined
 * while the Pod can continue.
 */
function podEnd(observed: ObservedVM, pod: Pod): End | undefined {
  const lost = givenUp(observed, pod);
  if (lost !== undefined || mustContinue(observed, pod)) {
    return lost;
  }
  const isDeleted = pod.metadata.deletionTimestamp !== undefined;
  return isDeleted ? deletedBy(pod) : hasEnded(pod) ? endOf(pod) : undefined;
}

export interface LostPlacement extends End {
  /** Host of the placement that the operator gave up. It is undefined if the Pod was lost before it was bound to a host. */
  readonly nodeName: string | undefined;
}

/**
 * Returns why the operator gave up the last placement (attempt on a host) of the VM. The result is undefined while the VM keeps its
 * placement.
 */
export function lostPlacement(observed: ObservedVM, { attempt = 1 }: VMStatus): LostPlacement | undefined {
  const { vm, pod } = observed;
  const isGivenUp = attempt > (vm.status?.attempt ?? 1);
  const end = isGivenUp && pod !== undefined ? podEnd(observed, pod) : undefined;
  return end && { ...end, nodeName: pod?.spec.nodeName };
}

/**
 * Returns the final state of a Pod whose host is lost. A host is lost if an administrator gave it up. A host is also lost if it stopped
 * reporting before the VM first ran, and did not report again within `hostLostTimeoutSeconds`. A deleted Node alone loses nothing, because
 * the host can be well.
 */
function givenUp(observed: ObservedVM, pod: Pod): End | undefined {
  const nodeName = pod.spec.nodeName;
  if (nodeName === undefined) {
    return undefined;
  }
  if (observed.isGivenUp) {
    return {
      reason: 'HostLost',
      message: `An administrator gave host ${nodeName} up, or set its taint out-of-service`,
    };
  }
  const neverRan = observed.vm.status?.firstRunningTime === undefined && !hasRun(pod);
  return neverRan && isLost(observed)
    ? {
        reason: 'HostLost',
        message: `Host ${nodeName} stopped reporting before the VM first ran, and did not report again in time`,
      }
    : undefined;
}

function deletedBy(pod: Pod): End {
  const disruption = pod.status?.conditions?.find(
    ({ type, status }) => type === 'DisruptionTarget' && status === 'True',
  );
  if (disruption?.reason !== undefined && EVICTED.has(disruption.reason)) {
    return {
      reason: 'Evicted',
      message: `The Pod of the VM was evicted (${disruption.reason}): ${disruption.message ?? ''}`.trim(),
    };
  }
  return { reason: 'PodDeleted', message: 'The Pod of the VM was deleted. The disk of the VM is lost' };
}

/**
 * Returns true if the VM is placed on a host again. This is possible only before its first run. The number of placements after deleted,
 * evicted or lost Pods has no limit. The number of placements after refusals by hosts has a limit. If the only host that the VM may use
 * refuses it, the VM is not placed again, because it would wait forever.
 */
function mayPlaceAgain(observed: ObservedVM, facts: VMFacts, pod: Pod, end: End): boolean {
  if (facts.firstRunningTime !== undefined) {
    return false;
  }
  // The Pod belongs to an earlier placement. The operator already decided to place the VM again, and this decision stays.
  if (podAttempt(pod) < facts.attempt) {
    return true;
  }
  if (LOST.has(end.reason)) {
    return true;
  }
  return isRefusal(end) && facts.avoidedNodes.length < MAXIMUM_REPLACEMENTS && !needsHostOf(observed, pod);
}

/** Returns true if `placement.node` of the VM or its VMConfig names the host of the Pod. In this case, the VM can run only on this host. */
function needsHostOf(observed: ObservedVM, { spec: { nodeName } }: Pod): boolean {
  const node = observed.vm.spec.placement?.node ?? findConfig(observed)?.spec.placement?.node;
  return node !== undefined && node === nodeName;
}

function isRefusal({ reason }: End): boolean {
  return classOf(reason, 'VM') === 'elsewhere';
}

function placedAgain(facts: VMFacts, pod: Pod, end: End): VMFacts {
  const attempt = Math.max(facts.attempt, podAttempt(pod) + 1);
  const node = pod.spec.nodeName;
  const avoid = attempt > facts.attempt && isRefusal(end) && node !== undefined;
  return { ...facts, attempt, avoidedNodes: avoid ? [...facts.avoidedNodes, node] : facts.avoidedNodes };
}

/**
 * Returns the failure of a VM whose deadline has passed. A VM that never ran has a deadline for its deployment. A VM that has run has the
 * deadline from its `activeDeadlineSeconds`.
 */
function expired(observed: ObservedVM, facts: VMFacts): End | undefined {
  const deadline = nextDeadline(observed, facts);
  return deadline !== undefined && observed.now >= deadline.at
    ? { reason: deadline.reason, message: deadline.message }
    : undefined;
}

export interface Deadline extends End {
  /** Time of the deadline in milliseconds since the epoch. */
  readonly at: number;
}

export function nextDeadline(observed: ObservedVM, facts: VMFacts): Deadline | undefined {
  const { vm, pod } = observed;
  const { activeDeadlineSeconds } = vm.spec;
  if (facts.failure !== undefined) {
    return undefined;
  }
  if (facts.firstRunningTime === undefined) {
    return deployDeadline(observed);
  }
  if (activeDeadlineSeconds === undefined || pod === undefined) {
    return undefined;
  }
  return {
    at: Date.parse(facts.firstRunningTime) + activeDeadlineSeconds * 1000,
    reason: 'DeadlineExceeded',
    message: `The VM was active longer than activeDeadlineSeconds (${activeDeadlineSeconds})`,
  };
}

/**
 * Returns the deadline of a deployment. The time limit starts when the VM is bound to a host, because waiting for a free host is never a
 * failure. The deadline applies until the machine is created, even if the machine must not be started. There is no deadline while the host
 * does not report. Otherwise the VM would fail before its host counts as lost, and would never get another host.
 */
function deployDeadline(observed: ObservedVM): Deadline | undefined {
  const { pod } = observed;
  const isDeploying = pod?.spec.nodeName !== undefined && pod.status?.phase !== 'Running';
  const bound = isDeploying ? boundTime(pod) : undefined;
  const seconds = deployTimeoutOf(observed);
  const at = bound === undefined ? undefined : endOfLimit(observed, bound, seconds);
  return at === undefined
    ? undefined
    : {
        at,
        reason: TIMEOUT,
        message: `The VM was not Running ${seconds} s after it was bound to host ${pod?.spec.nodeName}${lastReport(pod)}`,
      };
}

export function deployTimeoutOf({ vm, config }: ObservedVM): number {
  return vm.spec.deployTimeoutSeconds ?? config.defaults.deployTimeoutSeconds;
}
