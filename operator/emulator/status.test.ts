import { describe, expect, it } from 'vitest';
import type { Emulator, EmulatorStatus } from '../../api/v1alpha1/emulator.ts';
import {
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  VM_FINALIZER,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod, PodCondition } from '../../kube/core.ts';
import { conditionIn } from '../objects/conditions.ts';
import { reachOfNode } from '../host/observe.ts';
import { parseConfig } from '../config/config.ts';
import type { ObservedEmulator } from './observe.ts';
import { plan } from './plan.ts';
import { buildPod } from './pod.ts';
import { isMinorChange } from '../podbacked/reconciler.ts';
import { DEPLOYMENT, summarize } from './status.ts';

const config = parseConfig({}, 'test');
const NOW = Date.parse('2030-01-01T00:10:00Z');
const ADB = { address: '10.0.0.17', port: 5555 };
const vm = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { namespace: 'platform-ci', name: 'desk', uid: 'vm' },
  spec: {},
  status: { phase: 'Running' },
} as VM;
const emulator: Emulator = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'Emulator',
  metadata: { namespace: 'platform-ci', name: 'pixel', uid: 'emulator', generation: 3 },
  spec: { vmName: 'desk' },
};
const vmNode = {
  metadata: { name: 'mac-1' },
  status: { allocatable: { 'berth.dev/slot': '4' } },
} as unknown as Node;

function podWith(status: object, nodeName: string | undefined = 'mac-1'): Pod {
  const pod = buildPod({ emulator, vm, host: 'mac-1', config }) as Pod;
  return { ...pod, spec: { ...pod.spec, ...(nodeName && { nodeName }) }, status };
}

function runningPod(report: string, ...conditions: PodCondition[]): Pod {
  const machine = { type: MACHINE_CONDITION, status: 'True' as const, message: report };
  return podWith({ phase: 'Running', conditions: [machine, ...conditions] });
}

function waitingPod(reason: string, message: string): Pod {
  const state = { waiting: { reason, message } };
  return podWith({ phase: 'Pending', containerStatuses: [{ name: MACHINE_CONTAINER, state }] });
}

function observedWith(change: Partial<ObservedEmulator>): ObservedEmulator {
  const vmPod = {
    metadata: { labels: { [VM_UID_LABEL]: 'vm' } },
    spec: { nodeName: 'mac-1' },
  } as unknown as Pod;
  const observed = {
    emulator,
    vm,
    vmPod,
    vmNode,
    ...reachOfNode(vmNode),
    config,
    now: NOW,
    slotsTaken: () => 0,
    hosts: () => [],
  };
  return { ...observed, pod: undefined, isNameTaken: false, ...change };
}

function statusOf(change: Partial<ObservedEmulator>): EmulatorStatus {
  return summarize(observedWith(change), undefined);
}

function silentVM(reason: string, phase: string): VM {
  const ready = {
    type: 'Ready',
    status: 'Unknown' as const,
    reason,
    message: 'Host mac-1 does not report',
    lastTransitionTime: '',
  };
  return { ...vm, status: { phase, conditions: [ready] } };
}

describe('the address of ADB', () => {
  it('is as the host reports it, while the emulator runs', () => {
    const running = runningPod(JSON.stringify({ adb: ADB }));
    expect(statusOf({ pod: running }).adb).toEqual(ADB);
    for (const phase of ['Pending', 'Failed'] as const) {
      expect(statusOf({ pod: { ...running, status: { ...running.status, phase } } }).adb).toBeUndefined();
    }
  });

  it.each([
    ['that is no IPv4 address', { ...ADB, address: 'evil.example' }],
    ['with a port out of range', { ...ADB, port: 70_000 }],
    ['without a port', { address: ADB.address }],
  ])('%s is left out', (_, adb) => {
    const status = statusOf({ pod: runningPod(JSON.stringify({ adb })) });
    expect([status.phase, status.adb]).toEqual(['Running', undefined]);
  });
});

describe('an Emulator with a Pod', () => {
  it.each([
    ['Starting', 'Android is booting', 'Starting'],
    ['DiskFull', 'no room', 'Scheduled'],
  ])('that waits with reason %s says so', (reason, message, phase) => {
    const status = statusOf({ pod: waitingPod(reason, message) });
    expect(status.phase).toBe(phase);
    expect(conditionIn(status, 'Ready')).toMatchObject({ status: 'False', reason, message });
    expect(conditionIn(status, 'Reconciling')).toMatchObject({ status: 'True', observedGeneration: 3 });
  });

  it('is Ready while Android answers, and not otherwise', () => {
    const answer = (status: 'True' | 'False', message: string) =>
      conditionIn(statusOf({ pod: runningPod('', { type: 'Ready', status, message }) }), 'Ready');
    expect(answer('True', '')).toMatchObject({ status: 'True', reason: 'Running' });
    expect(answer('False', 'no answer')).toMatchObject({
      status: 'False',
      reason: 'NotReady',
      message: 'no answer',
    });
  });

  it('on a silent host is neither Ready nor failed, and is lost when its VM is', () => {
    const pod = runningPod(JSON.stringify({ adb: ADB }));
    const silent = statusOf({ pod, vm: silentVM('HostUnreachable', 'Running') });
    expect(silent.phase).toBe('Running');
    expect(conditionIn(silent, 'Ready')).toMatchObject({ status: 'Unknown', reason: 'HostUnreachable' });
    const lost = statusOf({ pod, vm: silentVM('HostLost', 'Failed') });
    expect(lost).toMatchObject({ phase: 'Failed', failure: undefined });
    expect(conditionIn(lost, 'Ready')).toMatchObject({ status: 'False', reason: 'HostLost' });
    expect(conditionIn(lost, 'Stalled')).toBeUndefined();
  });
});

describe('an Emulator that waits for a slot', () => {
  const message =
    "0/9 nodes are available: 1 Insufficient memory, 8 node(s) didn't match Pod's node affinity/selector.";
  const refused = { type: 'PodScheduled', status: 'False' as const, reason: 'Unschedulable', message };
  const pod = podWith({ phase: 'Pending', conditions: [refused] }, '');

  it('names the host and its slots when they are taken', () => {
    expect(conditionIn(statusOf({ pod, slotsTaken: () => 4 }), 'Scheduled')).toMatchObject({
      status: 'False',
      reason: 'NoFreeSlot',
      message: 'All 4 slots of host mac-1 are in use',
    });
  });

  it('has the words of the scheduler when the host has a free slot', () => {
    expect(conditionIn(statusOf({ pod, slotsTaken: () => 3 }), 'Scheduled')).toMatchObject({
      status: 'False',
      reason: 'Unschedulable',
      message: 'No host is free: 1 short of memory',
    });
  });

  it('says nothing about slots before the scheduler looked', () => {
    const fresh = statusOf({ pod: podWith({ phase: 'Pending' }, ''), slotsTaken: () => 4 });
    expect(conditionIn(fresh, 'Scheduled')).toMatchObject({
      status: 'Unknown',
      reason: 'WaitingForScheduler',
    });
  });
});

it('only changes on the way to Running may wait for the next write', () => {
  const starting = statusOf({ pod: waitingPod('Starting', '') });
  const running = statusOf({ pod: runningPod('{}') });
  expect(isMinorChange(DEPLOYMENT, undefined, starting)).toBe(true);
  expect(isMinorChange(DEPLOYMENT, { ...starting, phase: 'Scheduled' }, starting)).toBe(true);
  expect(isMinorChange(DEPLOYMENT, starting, running)).toBe(false);
  expect(isMinorChange(DEPLOYMENT, { ...starting, observedGeneration: 2 }, starting)).toBe(false);
});

describe('an Emulator that its host refused', () => {
  const tied: Emulator = {
    ...emulator,
    metadata: {
      ...emulator.metadata,
      finalizers: [VM_FINALIZER],
      ownerReferences: [{ apiVersion: 'berth.dev/v1alpha1', kind: 'VM', name: 'desk', uid: 'vm' }],
    },
  };
  /** Returns the Pod of an emulator that ended. `creationTimestamp` has the clock of the API server, and `finishedAt` that of the host. */
  const ended = (reason: string, finishedAt: string, creationTimestamp = '2030-01-01T00:00:00Z'): Pod => {
    const state = { terminated: { exitCode: 1, reason, message: 'full', finishedAt } };
    const pod = podWith({ phase: 'Failed', containerStatuses: [{ name: MACHINE_CONTAINER, state }] });
    return { ...pod, metadata: { ...pod.metadata, creationTimestamp } };
  };

  it.each(['OutOfSlot', 'OutOfcpu', 'OutOfmemory', 'OutOfDisk'])('with %s has not failed', (reason) => {
    const pod = ended(reason, '2030-01-01T00:09:55Z');
    const { write, blocked } = plan(observedWith({ emulator: tied, pod }));
    expect([write, blocked]).toEqual([undefined, { reason, message: 'full' }]);
    const failure = { reason, message: 'full', time: '2030-01-01T00:09:55Z' };
    const status = statusOf({ emulator: { ...tied, status: { failure } }, pod });
    expect([status.phase, status.failure]).toEqual(['Pending', undefined]);
  });

  it('gets another Pod ten seconds later', () => {
    const early = ended('OutOfSlot', '2030-01-01T00:09:51Z');
    expect(plan(observedWith({ emulator: tied, pod: early })).write).toBeUndefined();
    const pod = ended('OutOfSlot', '2030-01-01T00:09:50Z');
    expect(plan(observedWith({ emulator: tied, pod })).write).toEqual({ kind: 'deletePod', force: false });
    expect(plan(observedWith({ emulator: tied })).write).toEqual({ kind: 'createPod', host: 'mac-1' });
  });

  it.each([
    ['ahead', '2030-01-01T01:09:50Z'],
    ['behind', '2029-12-31T23:09:50Z'],
  ])(
    'gets another Pod ten seconds after the creation of its Pod when the clock of its host is %s',
    (_, at) => {
      const planned = (created: string) =>
        plan(observedWith({ emulator: tied, pod: ended('OutOfSlot', at, created) })).write;
      expect(planned('2030-01-01T00:09:51Z')).toBeUndefined();
      expect(planned('2030-01-01T00:09:50Z')).toEqual({ kind: 'deletePod', force: false });
    },
  );

  it('has failed when it ended for another reason', () => {
    const pod = ended('Crashed', '2030-01-01T00:09:50Z');
    expect(statusOf({ emulator: tied, pod })).toMatchObject({
      phase: 'Failed',
      failure: { reason: 'Crashed' },
    });
  });
});

describe('an Emulator whose VM runs', () => {
  const vmPodWith = (report: object) =>
    ({
      metadata: { labels: { [VM_UID_LABEL]: 'vm' } },
      spec: { nodeName: 'mac-1' },
      status: { conditions: [{ type: MACHINE_CONDITION, status: 'True', message: JSON.stringify(report) }] },
    }) as unknown as Pod;

  function madeBeside(report: object): Pod {
    const pod = buildPod({ emulator, vm, vmPod: vmPodWith(report), host: 'mac-1', config }) as Pod;
    return { ...pod, spec: { ...pod.spec, nodeName: 'mac-1' }, status: { phase: 'Running' } };
  }

  it.each([
    ['ends if the VM has stopped meanwhile', { stops: 1 }, { stops: 2 }, 'Stopped'],
    ['stays if the VM has not stopped', { stops: 1 }, { stops: 1 }, 'Running'],
    ['stays beside an earlier agent, which does not count', {}, { stops: 2 }, 'Running'],
    ['stays if the agent has become an earlier one', { stops: 1 }, {}, 'Running'],
  ])('%s', (_, before, now, phase) => {
    const change = { pod: madeBeside(before), vmPod: vmPodWith(now) };
    expect(statusOf(change).phase).toBe(phase);
    const ends = plan(observedWith(change)).write?.kind === 'deletePod';
    expect(ends).toBe(phase === 'Stopped');
  });

  it('is Starting, without an address, while Android boots again, and fails after its time for a start', () => {
    const pod = runningPod(JSON.stringify({ adb: ADB }));
    const [machine] = pod.status?.conditions ?? [];
    // The clock of the host is a day behind.
    const rebooted = { status: 'False', reason: 'Starting', lastTransitionTime: '2029-12-31T00:00:00Z' };
    const booting = podWith({ phase: 'Running', conditions: [{ ...machine, ...rebooted }] });
    const first = statusOf({ pod: booting });
    expect([first.phase, first.adb, first.failure]).toEqual(['Starting', undefined, undefined]);
    const after = (seconds: number) => {
      const now = NOW + seconds * 1000;
      return statusOf({ pod: booting, emulator: { ...emulator, status: first }, now }).failure?.reason;
    };
    expect([after(599), after(600)]).toEqual([undefined, 'DeployTimeout']);
  });

  it('fails after its time for a start with the cause that the host named last', () => {
    const { status, ...pod } = waitingPod('NoFreePort', 'No TCP port is free in the range 5554-5754');
    const late = { ...pod, status: { ...status, startTime: '2029-12-31T23:00:00Z' } } as Pod;
    const cause = 'NoFreePort: No TCP port is free in the range 5554-5754';
    const message = `The emulator was not Running 600 s after it was bound to host mac-1; the host last reported ${cause}`;
    expect(statusOf({ pod: late }).failure).toMatchObject({ reason: 'DeployTimeout', message });
  });

  it('is not late while its host is silent, and has its whole time after that', () => {
    const nodeWith = (status: string, lastTransitionTime: string) =>
      ({
        ...vmNode,
        status: { ...vmNode.status, conditions: [{ type: 'Ready', status, lastTransitionTime }] },
      }) as unknown as Node;
    const pod = podWith({ phase: 'Pending', startTime: '2029-12-31T23:00:00Z' });
    const failureOn = (node: Node) => statusOf({ pod, ...reachOfNode(node) }).failure?.reason;
    expect(failureOn(nodeWith('Unknown', '2030-01-01T00:09:00Z'))).toBeUndefined();
    expect(failureOn(nodeWith('True', '2030-01-01T00:00:01Z'))).toBeUndefined();
    expect(failureOn(nodeWith('True', '2030-01-01T00:00:00Z'))).toBe('DeployTimeout');
  });
});
