/** Records Events of a VM: one for each change that matters to users, for example a new host or a failure. */
import { timestamp } from '../../base/time.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import { isReason, meaningOf, type Reason, saidReason, UNCHECKED_GUEST } from '../../api/v1alpha1/reasons.ts';
import type { Condition } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../objects/events.ts';
import { reportedTrouble } from './disktrouble.ts';
import type { LostPlacement } from './facts.ts';

/**
 * Records Events for the changes from a VM's last status to the next. `lost` describes the last attempt on a host, if the operator gave up
 * this attempt.
 */
export function recordTransition(
  recorder: Recorder,
  vm: VM,
  next: VMStatus,
  lost: LostPlacement | undefined,
): void {
  const last = vm.status;
  // If the operator gave up an attempt, the next status already has the number of the following attempt. The Events need the number of the
  // earlier attempt, which is in the last status.
  const attempt = (lost === undefined ? next.attempt : last?.attempt) ?? 1;
  const stories = [
    ...placed(last, next, attempt),
    ...givenUp(lost, attempt),
    ...heldUp(last, next),
    ...troubledByDisk(last, next),
    ...moved(last, next),
    ...becameReady(last, next),
  ];
  for (const story of stories) {
    recorder.event(vm, story);
  }
}

/**
 * Records an Event: the VM has the MAC address of an earlier machine, which was abandoned on `hosts`. These hosts do not report, so the
 * earlier machine might be running.
 */
export function recordDoubledIdentity(
  recorder: Recorder,
  vm: VM,
  macAddress: string,
  hosts: readonly string[],
): void {
  const message = `The VM has the MAC address ${macAddress} of an earlier VM of this name. Perhaps the earlier VM is still running on a host that does not report: ${hosts.join(', ')}. Repair this host or switch it off`;
  recorder.event(vm, warning('IdentityMayBeDoubled', 'Deploying', message));
}

/**
 * Records an Event: the operator deleted the VM, because nobody prolonged its life. `milliseconds` is the end of this life, in
 * milliseconds since the epoch.
 */
export function recordNotRenewed(recorder: Recorder, vm: VM, milliseconds: number): void {
  const message = `The VM was deleted, because nobody moved its spec.aliveUntil later before ${timestamp(milliseconds)}`;
  recorder.event(vm, warning('NotRenewed', 'Ending', message));
}

/** Returns the Event about an attempt that the operator gave up. Only the Event keeps the reason, because the Pod is deleted soon. */
function givenUp(lost: LostPlacement | undefined, attempt: number): OperatorEvent[] {
  if (lost === undefined) {
    return [];
  }
  const where = lost.nodeName === undefined ? '' : ` on host ${lost.nodeName}`;
  const message = `Attempt ${attempt}${where} was given up: ${lost.message}`;
  return [warning(lost.reason, 'Scheduling', message)];
}

function placed(last: VMStatus | undefined, { nodeName }: VMStatus, attempt: number): OperatorEvent[] {
  return nodeName === undefined || nodeName === last?.nodeName
    ? []
    : [normal('Scheduled', 'Scheduling', `The VM was placed on host ${nodeName} (attempt ${attempt})`)];
}

function heldUp(last: VMStatus | undefined, next: VMStatus): OperatorEvent[] {
  const waiting = blocked(next);
  if (waiting === undefined || waiting.reason === blocked(last)?.reason) {
    return [];
  }
  const reason = saidReason(waiting.reason, 'Pending');
  return [{ ...warning(reason, 'Scheduling', waiting.message), isOnce: CHANGING_PLACES.has(reason) }];
}

/** Reasons of a VM that waits for a host. They change places each time a host starts, and all waiting VMs have them at the same time. */
const CHANGING_PLACES: ReadonlySet<string> = new Set(['Unschedulable', 'HostStarting'] satisfies Reason[]);

function troubledByDisk(last: VMStatus | undefined, next: VMStatus): OperatorEvent[] {
  const before = reportedTrouble(last);
  const now = reportedTrouble(next);
  if (now === undefined) {
    const isOver = before !== undefined && next.phase === 'Running';
    return isOver ? [normal('HostDiskHasRoom', 'Running', 'The disk of the host has room again')] : [];
  }
  const { reason, message } = now;
  return reason === before?.reason ? [] : [warning(reason, 'Running', message)];
}

function moved(last: VMStatus | undefined, next: VMStatus): OperatorEvent[] {
  if (next.failure !== undefined && last?.failure === undefined) {
    const { reason, message } = next.failure;
    return [warning(saidReason(reason, 'MachineFailed'), 'Ending', message)];
  }
  return next.phase === last?.phase ? [] : phaseStory(next);
}

/**
 * Returns the Event of a VM that runs and became Ready for a reason that its host told, for example because a port answers. There is only
 * one such Event for each start of the machine. Otherwise a guest that opens and closes its port could cause a very large number of Events.
 */
function becameReady(last: VMStatus | undefined, next: VMStatus): OperatorEvent[] {
  const ready = conditionIn(next, 'Ready');
  const before = conditionIn(last, 'Ready');
  if (next.phase !== 'Running' || ready?.status !== 'True' || before?.status === 'True') {
    return [];
  }
  const isFirst =
    before === undefined || Date.parse(before.lastTransitionTime) <= Date.parse(next.startTime ?? '');
  return isFirst && !UNCHECKED.has(ready.message) ? [normal('Ready', 'Running', ready.message)] : [];
}

/** Messages of a VM that is Ready because its machine runs. The Event about the run tells the same. */
const UNCHECKED: ReadonlySet<string> = new Set([meaningOf('Running'), UNCHECKED_GUEST]);

const STORIES: Readonly<Partial<Record<Reason, string>>> = {
  Running: meaningOf('Running'),
  Stopped: 'The machine is stopped',
  Suspended: 'The machine is suspended',
};

function phaseStory(next: VMStatus): OperatorEvent[] {
  const { phase } = next;
  const message = isReason(phase) ? STORIES[phase] : undefined;
  if (isReason(phase) && message !== undefined) {
    return [normal(phase, 'Running', message)];
  }
  if (next.phase === 'Failed') {
    const ready = conditionIn(next, 'Ready');
    return [warning(saidReason(ready?.reason, 'Failed'), 'Running', ready?.message ?? '')];
  }
  return [];
}

/**
 * Returns the condition that blocks the deployment: no host, no image, a refused Pod, or a spec that no host can run. The result is undefined
 * if nothing blocks it.
 */
function blocked(status: VMStatus | undefined): Condition | undefined {
  return status?.conditions?.find(({ type, status: value }) =>
    type === 'Stalled'
      ? value === 'True' && status.phase === 'Pending'
      : (type === 'Scheduled' || type === 'ImageReady') && value === 'False',
  );
}
