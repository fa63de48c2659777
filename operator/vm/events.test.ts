import { expect, it } from 'vitest';
import { type SaidReason, UNCHECKED_GUEST } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { EventRecorder } from '../../kube/events.ts';
import { recordTransition } from './events.ts';

const STARTED = '2030-01-01T00:00:00Z';

function running(ready: 'True' | 'False', message: string, time = STARTED): VMStatus {
  return {
    phase: 'Running',
    nodeName: 'host',
    startTime: STARTED,
    conditions: [{ type: 'Ready', status: ready, reason: 'Running', message, lastTransitionTime: time }],
  };
}

/** Returns the Events of a change between two statuses. */
function reported(before: VMStatus | undefined, after: VMStatus): string[] {
  const events: string[] = [];
  const event: EventRecorder<SaidReason>['event'] = (_vm, { reason, message }) =>
    events.push(`${reason}: ${message}`);
  const vm: VM = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'x', namespace: 'platform-ci' },
    spec: {},
    ...(before && { status: before }),
  };
  recordTransition({ event } as EventRecorder<SaidReason>, vm, after, undefined);
  return events;
}

const ANSWERS = running('True', 'Port 22 of the guest answers');

it('a VM that becomes Ready has one Event with the reason', () => {
  expect(reported(running('False', 'The guest does not answer'), ANSWERS)).toEqual([
    'Ready: Port 22 of the guest answers',
  ]);
  expect(reported(ANSWERS, ANSWERS)).toEqual([]);
});

it('a guest that closes and opens its port causes no more Events before its next start', () => {
  const closed = running('False', 'Port 22 is closed', '2030-01-01T00:07:00Z');
  expect(reported(closed, ANSWERS)).toEqual([]);
  const startedAgain = { ...ANSWERS, startTime: '2030-01-01T00:08:00Z' };
  expect(reported(closed, startedAgain)).toEqual(['Ready: Port 22 of the guest answers']);
});

it('a VM that is off as declared has no Event about its readiness', () => {
  const [ready] = running('True', 'The machine is off').conditions ?? [];
  const stopped: VMStatus = {
    phase: 'Stopped',
    nodeName: 'host',
    conditions: ready === undefined ? [] : [ready],
  };
  const before = running('False', 'The VM is to be stopped');
  expect(reported(before, stopped)).toEqual(['Stopped: The machine is stopped']);
});

it.each(['The machine runs', UNCHECKED_GUEST])(
  'a VM that is Ready as soon as it runs has only the Events of its host and its run: %s',
  (message) => {
    expect(reported(undefined, running('True', message))).toEqual([
      'Scheduled: The VM was placed on host host (attempt 1)',
      'Running: The machine runs',
    ]);
  },
);

it('a VM that no host can run has an Event with the reason, once', () => {
  const condition = {
    status: 'True',
    reason: 'NetworkModeUnsupported',
    message: 'Create it with NAT',
  } as const;
  const stalled: VMStatus = {
    phase: 'Pending',
    conditions: [{ type: 'Stalled', lastTransitionTime: STARTED, ...condition }],
  };
  expect(reported(undefined, stalled)).toEqual(['NetworkModeUnsupported: Create it with NAT']);
  expect(reported(stalled, stalled)).toEqual([]);
});

it('a VM that waits while hosts start tells each of its two reasons once, and a change of another kind each time', () => {
  const waiting = (reason: string): VMStatus => ({
    phase: 'Pending',
    conditions: [{ type: 'Scheduled', status: 'False', reason, message: 'x', lastTransitionTime: STARTED }],
  });
  const marks: (boolean | undefined)[] = [];
  const event: EventRecorder<SaidReason>['event'] = (_vm, { isOnce }) => marks.push(isOnce);
  const reasons = ['Unschedulable', 'HostStarting', 'Unschedulable', 'PodRefused'];
  reasons.forEach((reason, index) => {
    const status = index === 0 ? {} : { status: waiting(reasons[index - 1] ?? '') };
    const vm = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata: { name: 'x' }, spec: {}, ...status };
    recordTransition({ event } as EventRecorder<SaidReason>, vm, waiting(reason), undefined);
  });
  expect(marks).toEqual([true, true, true, false]);
});
