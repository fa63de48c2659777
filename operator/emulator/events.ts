/** Records Events of an Emulator: one for each change that matters to users. */
import type { Emulator, EmulatorStatus } from '../../api/v1alpha1/emulator.ts';
import { type Reason, saidReason } from '../../api/v1alpha1/reasons.ts';
import { conditionIn } from '../objects/conditions.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../objects/events.ts';

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
