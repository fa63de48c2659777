/** The story of a VM as Events: one on each transition that a person would ask about. */
import type { VM } from '../../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../../api/v1alpha1/vmstatus.ts';
import type { EventRecorder } from '../../../kube/events.ts';

interface Story {
  readonly type: 'Normal' | 'Warning';
  readonly reason: string;
  readonly action: string;
  readonly message: string;
}

/** Emits what changed between two statuses of a VM. */
export function recordTransition(
  recorder: EventRecorder,
  vm: VM,
  last: VMStatus | undefined,
  next: VMStatus,
): void {
  for (const story of transitions(last, next)) {
    recorder.event(vm, story);
  }
}

function transitions(last: VMStatus | undefined, next: VMStatus): Story[] {
  return [...placed(last, next), ...heldUp(last, next), ...moved(last, next)];
}

function placed(last: VMStatus | undefined, { nodeName, attempt = 1 }: VMStatus): Story[] {
  return nodeName === undefined || nodeName === last?.nodeName
    ? []
    : [normal('Scheduled', 'Scheduling', `placed on host ${nodeName} (attempt ${attempt})`)];
}

function heldUp(last: VMStatus | undefined, next: VMStatus): Story[] {
  const waiting = blocked(next);
  return waiting === undefined || waiting.reason === blocked(last)?.reason
    ? []
    : [{ type: 'Warning', reason: waiting.reason, action: 'Scheduling', message: waiting.message }];
}

function moved(last: VMStatus | undefined, next: VMStatus): Story[] {
  if (next.failure !== undefined && last?.failure === undefined) {
    return [
      { type: 'Warning', reason: next.failure.reason, action: 'Ending', message: next.failure.message },
    ];
  }
  return next.phase === last?.phase ? [] : phaseStory(next);
}

const STORIES: Readonly<Record<string, string>> = {
  Running: 'the machine runs',
  Stopped: 'the machine is stopped',
  Suspended: 'the machine is suspended',
};

function phaseStory(next: VMStatus): Story[] {
  const message = STORIES[next.phase ?? ''];
  if (message !== undefined) {
    return [normal(next.phase ?? '', 'Running', message)];
  }
  if (next.phase === 'Failed') {
    const ready = next.conditions?.find(({ type }) => type === 'Ready');
    return [
      {
        type: 'Warning',
        reason: ready?.reason ?? 'Failed',
        action: 'Running',
        message: ready?.message ?? '',
      },
    ];
  }
  return [];
}

function normal(reason: string, action: string, message: string): Story {
  return { type: 'Normal', reason, action, message };
}

/** A condition that holds the deployment up: no host, no image, a refused Pod. */
function blocked(status: VMStatus | undefined): { reason: string; message: string } | undefined {
  return status?.conditions?.find(
    ({ type, status: value }) => (type === 'Scheduled' || type === 'ImageReady') && value === 'False',
  );
}
