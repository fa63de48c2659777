/** Computes the whole status of an Emulator from the observed state, and records an Event for each change that matters to users. */
import type { Emulator, EmulatorStatus } from '../../api/v1alpha1/emulator.ts';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import { timestamp } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import type { Condition } from '../../kube/objects.ts';
import { type ConditionDraft as Draft, conditionIn, stampConditions } from '../objects/conditions.ts';
import { slotsOf } from '../tasks/placement.ts';
import { machineReport, podCondition, readyByPod } from '../podbacked/pod.ts';
import { explainPlacement } from '../vm/scheduling.ts';
import { type EmulatorFacts, gatherFacts } from './facts.ts';
import type { ObservedEmulator } from './observe.ts';
import { type EmulatorPhase, isSilent, type EmulatorPhaseReport, phaseOf } from './phase.ts';
import type { EmulatorBlocked } from './plan.ts';
import { hostOfPod } from './pod.ts';
import { type Reason, saidReason } from '../../api/v1alpha1/reasons.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../objects/events.ts';

/** Phases in which an Emulator is being deployed. `kubectl wait` and kstatus must continue to wait in these phases. */
export const DEPLOYMENT: ReadonlySet<string> = new Set<EmulatorPhase>(['Pending', 'Scheduled', 'Starting']);

/** Phases of a VM that is off and can run again. */
const OFF: ReadonlySet<string | undefined> = new Set(['Stopped', 'Suspended']);

export function summarize(observed: ObservedEmulator, blocked: EmulatorBlocked | undefined): EmulatorStatus {
  const { emulator, pod } = observed;
  const facts = gatherFacts(observed);
  const phase = phaseOf(observed, facts);
  return {
    observedGeneration: emulator.metadata.generation ?? 0,
    phase: phase.name,
    nodeName: pod?.spec.nodeName,
    adb: phase.name === 'Running' || isSilent(phase) ? machineReport(pod).adb : undefined,
    firstRunningTime: facts.firstRunningTime,
    failure: facts.failure,
    conditions: conditions(observed, { phase, facts, blocked }),
  };
}

interface Findings {
  readonly phase: EmulatorPhaseReport;
  readonly facts: EmulatorFacts;
  readonly blocked: EmulatorBlocked | undefined;
}

function conditions(observed: ObservedEmulator, findings: Findings): Condition[] {
  const { emulator, now } = observed;
  const drafts = [
    ready(observed, findings),
    reconciling(observed, findings),
    stalled(observed, findings),
    scheduled(observed, findings),
  ].filter((draft) => draft !== undefined);
  const generation = emulator.metadata.generation ?? 0;
  return stampConditions(drafts, emulator.status?.conditions, { now: timestamp(now), generation });
}

/** Returns the condition Ready. It is True if the emulator is usable, or off because its VM is off as declared. */
function ready(observed: ObservedEmulator, { phase, blocked }: Findings): Draft {
  const type = 'Ready';
  const { name, reason, message } = phase;
  if (isSilent(phase)) {
    return { type, status: 'Unknown', reason, message };
  }
  if (name !== 'Running') {
    const said = name === 'Pending' && blocked !== undefined ? blocked : phase;
    const status = restsWithVM(observed, phase) === 'as declared' ? 'True' : 'False';
    return { type, status, reason: said.reason, message: said.message };
  }
  return readyByPod(observed.pod, 'ADB of the emulator does not answer');
}

/**
 * Returns why an Emulator without a Pod stays off: because its VM is off as declared, or because its VM has ended. The result is undefined
 * if the Emulator does not wait for a VM, or if the VM can still start by itself.
 */
function restsWithVM(
  { vm, pod }: ObservedEmulator,
  { reason }: EmulatorPhaseReport,
): 'as declared' | 'ended' | undefined {
  if (reason !== 'VMNotRunning' || pod !== undefined) {
    return undefined;
  }
  const { status } = vm ?? {};
  const isTrue = (type: string) => conditionIn(status, type)?.status === 'True';
  if (OFF.has(status?.phase) && isTrue('Ready')) {
    return 'as declared';
  }
  return isTrue('Stalled') ? 'ended' : undefined;
}

/**
 * Returns the condition Reconciling while an Emulator is starting or ending. A stopped emulator counts as ending until its Pod no longer
 * exists.
 */
function reconciling(observed: ObservedEmulator, { phase, blocked }: Findings): Draft | undefined {
  const { name } = phase;
  const isEnding = name === 'Terminating' || (name === 'Stopped' && observed.pod !== undefined);
  const isBusy = isEnding || (DEPLOYMENT.has(name) && restsWithVM(observed, phase) === undefined);
  const { message } = blocked ?? phase;
  return isBusy ? { type: 'Reconciling', status: 'True', reason: name, message } : undefined;
}

function stalled(observed: ObservedEmulator, { phase, facts }: Findings): Draft | undefined {
  const { name, reason, message } = phase;
  const hasFailed = name === 'Failed' && facts.failure !== undefined;
  return hasFailed || restsWithVM(observed, phase) === 'ended'
    ? { type: 'Stalled', status: 'True', reason, message }
    : undefined;
}

function scheduled(observed: ObservedEmulator, { blocked }: Findings): Draft {
  const type = 'Scheduled';
  const { pod } = observed;
  if (blocked !== undefined) {
    return { type, status: 'False', reason: blocked.reason, message: blocked.message };
  }
  if (pod === undefined) {
    return { type, status: 'Unknown', reason: 'NoPod', message: 'The Emulator has no Pod' };
  }
  if (pod.spec.nodeName !== undefined) {
    return {
      type,
      status: 'True',
      reason: 'Scheduled',
      message: `The Emulator is on host ${pod.spec.nodeName}`,
    };
  }
  return { type, ...waitingForHost(observed, pod) };
}

/**
 * Returns the reason why the Pod has no host yet. The Pod can run only on the VM's host. If all slots of this host are in use, the reason
 * is NoFreeSlot. Otherwise the reason comes from the scheduler's message.
 */
function waitingForHost(observed: ObservedEmulator, pod: Pod): Omit<Draft, 'type'> {
  const condition = podCondition(pod, 'PodScheduled');
  if (condition?.status !== 'False') {
    const message = 'The Emulator is waiting for the scheduler';
    return { status: 'Unknown', reason: 'WaitingForScheduler', message };
  }
  const host = hostOfPod(pod) ?? '';
  const slots = slotsOf(observed.vmNode);
  const said = condition.message ?? '';
  // The scheduler's message is also checked, because the scheduler might know about a full host before the caches show it.
  const isFull = observed.vmNode !== undefined && observed.slotsTaken(host) >= slots;
  if (isFull || said.includes(`Insufficient ${SLOT_RESOURCE}`)) {
    const message = `All ${slots} slots of host ${host} are in use`;
    return { status: 'False', reason: 'NoFreeSlot', message };
  }
  const message = explainPlacement(pod, said, observed.hosts);
  return { status: 'False', reason: 'Unschedulable', message };
}

/**
 * Reasons why an Emulator that was just created together with its VM is not scheduled yet. These reasons are not faults, so the Event about
 * them has the type Normal.
 */
const WAITING: ReadonlySet<string> = new Set<Reason>(['VMNotFound', 'VMNotRunning']);

/** Records Events for the changes from an Emulator's last status to the next. */
export function recordTransition(recorder: Recorder, emulator: Emulator, next: EmulatorStatus): void {
  const last = emulator.status;
  for (const story of [...placed(emulator, next), ...heldUp(last, next), ...moved(last, next)]) {
    recorder.event(emulator, story);
  }
}

/** Records the Event of an Emulator that is deleted because its VM stopped. */
export function recordDeletion(recorder: Recorder, emulator: Emulator): void {
  const message = `The Emulator is deleted, because VM ${emulator.spec.vmName} is not running and whenVMStops is Delete`;
  recorder.event(emulator, normal('VMNotRunning', 'Ending', message));
}

function placed({ spec, status }: Emulator, { nodeName }: EmulatorStatus): OperatorEvent[] {
  return nodeName === undefined || nodeName === status?.nodeName
    ? []
    : [normal('Scheduled', 'Scheduling', `The emulator was placed on host ${nodeName} of VM ${spec.vmName}`)];
}

function heldUp(last: EmulatorStatus | undefined, next: EmulatorStatus): OperatorEvent[] {
  const now = conditionIn(next, 'Scheduled');
  const before = conditionIn(last, 'Scheduled');
  const isNew = now?.status === 'False' && (before?.status !== 'False' || now.reason !== before.reason);
  if (!isNew || next.phase === 'Stopped') {
    return [];
  }
  const { reason, message } = now;
  const story = WAITING.has(reason) ? normal : warning;
  return [story(saidReason(reason, 'Pending'), 'Scheduling', message)];
}

function moved(last: EmulatorStatus | undefined, next: EmulatorStatus): OperatorEvent[] {
  if (next.phase === last?.phase) {
    return [];
  }
  switch (next.phase) {
    case 'Running':
      return [normal('Running', 'Running', 'The emulator runs')];
    case 'Stopped':
      return [
        normal('Stopped', 'Ending', 'The emulator and its data were removed, because its VM is not running'),
      ];
    case 'Failed': {
      const { reason, message = '' } = conditionIn(next, 'Ready') ?? {};
      return [warning(saidReason(reason, 'MachineFailed'), 'Running', message)];
    }
    default:
      return [];
  }
}
