/** Computes the whole status of a VM from the observed state and the facts (see facts.ts). */
import { timestamp } from '../../base/time.ts';
import { NETWORK_CONDITION } from '../../api/v1alpha1/names.ts';
import { classOf, isReason, isSeen, type Reason, saidReason } from '../../api/v1alpha1/reasons.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Condition } from '../../kube/objects.ts';
import { type ConditionDraft as Draft, conditionIn, stampConditions } from '../objects/conditions.ts';
import { awaitedChange, doneStamps, hasEndedByItself } from './declared.ts';
import type { Facts } from './facts.ts';
import { pausedByDisk } from './disktrouble.ts';
import type { Observed } from './observe.ts';
import { phasesIn } from '../../api/v1alpha1/phases.ts';
import { isOffAsDeclared, type Phase, PENDING_PHASES, phaseOf } from './phase.ts';
import { machineStatus, nonEmpty } from './machinestatus.ts';
import { machineReport, podCondition, readyByPod, waitingState } from './podstate.ts';
import type { Unresolved } from './resolve.ts';
import { schedulingReason } from './scheduling.ts';
import { restartRequired } from './size.ts';
import { userDataReady } from './userdata.ts';

/** Results of the steps of a reconcile. The Pod does not show these results. */
export interface Findings {
  /**
   * Reason why the VM's Pod could not be created. Either the settings cannot be resolved, another Pod has the name, or the API server
   * refused the Pod or its Secret.
   */
  readonly blocked?:
    | { condition: 'Scheduled' | 'ImageReady' | 'Stalled'; reason: Reason; message: string }
    | undefined;
}

export function summarize(observed: Observed, facts: Facts, findings: Findings): VMStatus {
  const { vm, pod } = observed;
  const phase = phaseOf(observed, facts);
  return {
    observedGeneration: vm.metadata.generation ?? 0,
    phase: phase.name,
    nodeName: pod?.spec.nodeName,
    hostAddress: hostAddress(observed),
    ...machineStatus(observed, phase.name),
    attempt: facts.attempt,
    firstRunningTime: facts.firstRunningTime,
    avoidedNodes: nonEmpty([...facts.avoidedNodes]),
    failure: facts.failure,
    ...doneStamps(observed),
    conditions: conditions(observed, { phase, facts, findings }),
  };
}

function hostAddress({ pod, node }: Observed): string | undefined {
  if (pod?.spec.nodeName === undefined) {
    return undefined;
  }
  const internal = node?.status?.addresses?.find(({ type }) => type === 'InternalIP');
  return pod.status?.hostIP ?? internal?.address;
}

interface Derived {
  readonly phase: Phase;
  readonly facts: Facts;
  readonly findings: Findings;
}

/**
 * Returns the conditions of a VM. `Ready` and `Scheduled` exist from the first reconcile on. Other conditions exist only while they have
 * information. The rules of kstatus require this for Reconciling and Stalled. An absent condition means Unknown. There are few conditions,
 * because each one costs the API server 0.3 ms each time the status is stored.
 */
function conditions(observed: Observed, { phase, facts, findings }: Derived): Condition[] {
  const generation = observed.vm.metadata.generation ?? 0;
  const placement = scheduled(observed, findings);
  const drafts = [
    ready(observed, phase, findings),
    reconciling(observed, { phase, findings }, placement),
    stalled(observed, { phase, facts, findings }),
    placement,
    imageReady(observed, findings),
    networkReady(observed),
    restartRequired(observed),
    guestAgent(observed),
    userDataReady(observed),
    displayReady(observed),
  ].filter((draft) => draft !== undefined);
  return stampConditions(drafts, observed.vm.status?.conditions, {
    now: timestamp(observed.now),
    generation,
  });
}

/** Returns the condition Ready. It is True if the VM is as declared: it runs and is ready, or it is off on request. */
function ready(observed: Observed, phase: Phase, { blocked }: Findings): Draft {
  const type = 'Ready';
  if (blocked !== undefined) {
    return { type, status: 'False', reason: blocked.reason, message: blocked.message };
  }
  const { reason, message } = phase;
  if (reason === 'HostUnreachable' || reason === 'HostPoweredOff') {
    return { type, status: 'Unknown', reason, message };
  }
  const awaited = awaitedChange(observed, phase);
  if (awaited !== undefined) {
    return { type, status: 'False', ...awaited };
  }
  if (phase.name !== 'Running') {
    return { type, status: isOffAsDeclared(observed, phase) ? 'True' : 'False', reason, message };
  }
  const { pod } = observed;
  return pausedByDisk(pod) ?? readyByPod(pod, 'The guest is not ready yet');
}

const SETTLED = phasesIn('settled');

/** Returns the condition Reconciling. Its message tells why the VM is not as declared yet. `placement` is the condition Scheduled. */
function reconciling(
  observed: Observed,
  { phase, findings: { blocked } }: Pick<Derived, 'phase' | 'findings'>,
  placement: Draft,
): Draft | undefined {
  const draft = { type: 'Reconciling', status: 'True' } as const;
  const awaited = awaitedChange(observed, phase);
  if (awaited !== undefined) {
    return { ...draft, ...awaited };
  }
  if (SETTLED.has(phase.name) || blocked?.condition === 'Stalled') {
    return undefined;
  }
  const { pod } = observed;
  const waitsForHost = pod !== undefined && pod.spec.nodeName === undefined;
  const { message } = blocked ?? (waitsForHost ? placement : phase);
  return { ...draft, reason: phase.name, message };
}

/**
 * Returns the condition Stalled: the VM has failed, cannot run, or its guest ended by itself. A VM on a silent host is Failed too, but has no
 * recorded failure. It is not Stalled, because the host can return with its machine.
 */
function stalled(observed: Observed, { phase, facts, findings: { blocked } }: Derived): Draft | undefined {
  const type = 'Stalled';
  const hasFailed = phase.name === 'Failed' && facts.failure !== undefined;
  if (hasFailed || hasEndedByItself(observed, phase)) {
    return { type, status: 'True', reason: phase.reason, message: phase.message };
  }
  return blocked?.condition === 'Stalled'
    ? { type, status: 'True', reason: blocked.reason, message: blocked.message }
    : undefined;
}

function scheduled({ vm, pod, portHolder, hosts, startingHosts }: Observed, { blocked }: Findings): Draft {
  const type = 'Scheduled';
  if (blocked?.condition === 'Scheduled') {
    return { type, status: 'False', reason: blocked.reason, message: blocked.message };
  }
  if (pod === undefined) {
    return { type, status: 'Unknown', reason: 'NoPod', message: 'The VM has no Pod' };
  }
  if (pod.spec.nodeName !== undefined) {
    return { type, status: 'True', reason: 'Scheduled', message: `The VM is on host ${pod.spec.nodeName}` };
  }
  const avoidedNodes = vm.status?.avoidedNodes ?? [];
  const { reason, message } = schedulingReason(pod, { portHolder, hosts, startingHosts, avoidedNodes });
  return { type, status: reason === 'WaitingForScheduler' ? 'Unknown' : 'False', reason, message };
}

function imageReady({ pod }: Observed, { blocked }: Findings): Draft | undefined {
  const type = 'ImageReady';
  if (blocked?.condition === 'ImageReady') {
    return { type, status: 'False', reason: blocked.reason, message: blocked.message };
  }
  const { reason, message = '' } = waitingState(pod);
  if (reason !== undefined && isOfImage(reason)) {
    return { type, status: 'False', reason: saidReason(reason, 'ImageFetchFailed'), message };
  }
  return pod?.status?.phase === 'Running'
    ? { type, status: 'True', reason: 'Deployed', message: '' }
    : undefined;
}

/**
 * Returns true if the reason means that the machine waits for its image. A newer agent can report reasons that this release does not know.
 * Such an unknown reason counts if it begins with `Image`.
 */
function isOfImage(reason: string): boolean {
  return isReason(reason)
    ? isSeen(reason, 'VM', 'ImageReady') && classOf(reason, 'VM') !== 'state'
    : /^Image\w*$/.test(reason);
}

function networkReady({ pod }: Observed): Draft | undefined {
  const type = 'NetworkReady';
  if (pod?.spec.nodeName === undefined) {
    return undefined;
  }
  const condition = podCondition(pod, NETWORK_CONDITION);
  return condition === undefined
    ? { type, status: 'Unknown', reason: 'NotReported', message: '' }
    : {
        type,
        status: condition.status,
        reason: saidReason(condition.reason, 'Reported'),
        message: condition.message ?? '',
      };
}

function guestAgent({ pod }: Observed): Draft | undefined {
  const type = 'GuestAgentConnected';
  const connected = machineReport(pod).guestAgentConnected;
  return connected === undefined
    ? undefined
    : {
        type,
        status: connected ? 'True' : 'False',
        reason: connected ? 'Connected' : 'NotConnected',
        message: '',
      };
}

/**
 * Returns the condition with the host's report about the display. `Ready` does not depend on it: a VM without the requested DPI can be
 * Ready.
 */
function displayReady({ pod }: Observed): Draft | undefined {
  const { display } = machineReport(pod);
  return (
    display && {
      type: 'DisplayReady',
      status: display.ready ? 'True' : 'False',
      reason: saidReason(display.reason, 'Reported'),
      message: display.message,
    }
  );
}

/** Returns the condition, reason and message for a VM that cannot be resolved. */
export function blockedBy(unresolved: Unresolved): NonNullable<Findings['blocked']> {
  const { reason, message } = unresolved;
  if (reason === 'ImageNotFound' || reason === 'ImageNotReady') {
    return { condition: 'ImageReady', reason, message };
  }
  return { condition: unresolved.kind === 'terminal' ? 'Stalled' : 'Scheduled', reason, message };
}

/**
 * Returns true if the new status can be stored later, because nobody waits for the changed fields. The first status can also be stored
 * later. If the VM runs before that, its status never contains Pending.
 */
export function isMinorChange(last: VMStatus | undefined, next: VMStatus): boolean {
  const { attempt, observedGeneration } = next;
  const before: VMStatus =
    last?.phase === undefined ? { phase: 'Pending', attempt: 1, observedGeneration } : last;
  return (
    [before, next].every(({ phase = '' }) => PENDING_PHASES.has(phase)) &&
    before.attempt === attempt &&
    before.observedGeneration === observedGeneration &&
    before.failure === next.failure &&
    conditionIn(before, 'Stalled')?.status === conditionIn(next, 'Stalled')?.status
  );
}
