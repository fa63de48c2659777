import { expect, it, vi } from 'vitest';
import { DISK_CONDITION, HOST_DISK_FULL, NO_ROOM_TO_SUSPEND } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { EventRecorder } from '../../kube/events.ts';
import type { Pod } from '../../kube/core.ts';
import { reachOfNode } from '../host/observe.ts';
import { parseConfig } from '../config/config.ts';
import { recordTransition } from './events.ts';
import { gatherFacts } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { summarize } from './status.ts';

const none = () => undefined;

const VM_OF_TEST: VM = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { name: 'x', namespace: 'platform-default', uid: 'u', generation: 1 },
  spec: {},
};

/** Returns a Pod with the disk condition as the agent of the Pod's host reports it. */
function podWith(disk: { reason: string; message: string } | undefined): Pod {
  const conditions = [
    { type: 'Ready', status: disk?.reason === HOST_DISK_FULL ? ('False' as const) : ('True' as const) },
    ...(disk === undefined ? [] : [{ type: DISK_CONDITION, status: 'False' as const, ...disk }]),
  ];
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'x', namespace: 'platform-default' },
    spec: { nodeName: 'host', containers: [] },
    status: { phase: 'Running', conditions },
  };
}

function statusWith(disk: { reason: string; message: string } | undefined, spec: VM['spec'] = {}): VMStatus {
  const observed: ObservedVM = {
    vm: { ...VM_OF_TEST, spec },
    pod: podWith(disk),
    nameTakenBy: undefined,
    ...reachOfNode({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } }),
    successor: undefined,
    resizeRefused: undefined,
    snapshots: [],
    lookups: { vmConfig: none, image: none, iso: none, credentials: none },
    portHolder: () => undefined,
    hosts: () => [],
    startingHosts: () => [],
    isDedicated: () => false,
    config: parseConfig({}, 'test'),
    now: 0,
    clusterUid: 'cluster',
    random: () => '',
  };
  return summarize(observed, gatherFacts(observed), {});
}

function conditionIn(status: VMStatus, type: string) {
  return status.conditions?.find((condition) => condition.type === type);
}

it('a machine that its host paused is Running and not Ready, with the reason', () => {
  const status = statusWith({ reason: HOST_DISK_FULL, message: 'paused' });
  expect(status.phase).toBe('Running');
  expect(conditionIn(status, 'Ready')).toMatchObject({
    status: 'False',
    reason: HOST_DISK_FULL,
    message: 'paused',
  });
  expect(conditionIn(status, 'Reconciling')).toBeUndefined();
});

it('a machine without room to be suspended is not Ready, and still Reconciling', () => {
  const status = statusWith(
    { reason: NO_ROOM_TO_SUSPEND, message: 'too large' },
    { powerState: 'Suspended' },
  );
  const reported = { reason: NO_ROOM_TO_SUSPEND, message: 'too large' };
  expect(conditionIn(status, 'Ready')).toMatchObject({ status: 'False', ...reported });
  expect(conditionIn(status, 'Reconciling')).toMatchObject({ status: 'True', ...reported });
});

it('a reason that no agent of Berth has is ignored, so a host cannot cause a status that the API server refuses', () => {
  const status = statusWith({ reason: 'no reason', message: '' });
  expect(conditionIn(status, 'Ready')).toMatchObject({ status: 'True' });
  expect(conditionIn(status, 'Reconciling')).toBeUndefined();
});

it('Events report its begin and its end, once each', () => {
  const event = vi.fn<EventRecorder<SaidReason>['event']>();
  const recorder = { event } as unknown as EventRecorder<SaidReason>;
  const stories = (last: VMStatus, next: VMStatus) => {
    event.mockClear();
    recordTransition(recorder, { ...VM_OF_TEST, status: last }, next, undefined);
    return event.mock.calls.map(([, { type, reason }]) => `${type} ${reason}`);
  };
  const fine = statusWith(undefined);
  const paused = statusWith({ reason: HOST_DISK_FULL, message: 'paused' });
  expect(stories(fine, paused)).toEqual([`Warning ${HOST_DISK_FULL}`]);
  expect(stories(paused, paused)).toEqual([]);
  expect(stories(paused, fine)).toEqual(['Normal HostDiskHasRoom']);
  expect(stories(fine, fine)).toEqual([]);
});
