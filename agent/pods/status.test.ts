import { describe, expect, test } from 'vitest';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { machineReportSchema } from '../../api/v1alpha1/machine.ts';
import {
  DISK_CONDITION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  SNAPSHOTS_CONDITION,
} from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { MachineState } from '../drivers/driver.ts';
import { PAUSED_MESSAGE } from './diskguard.ts';
import { type MachineRecord, newRecord, newRuntime, type Runtime, type MachineStep } from './machine.ts';
import { machineStatus, phaseOf } from './status.ts';

const POD: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'x', namespace: 'ns', uid: 'u' },
  spec: { containers: [{ name: MACHINE_CONTAINER, image: 'x' }] },
};
const ADDRESSES = { address: '192.0.2.1', forwardAddress: '192.0.2.2' };
const DIGEST = `sha256:${'0'.repeat(64)}`;
const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };

/** Returns the conditions of a Pod whose machine has a ready guest. */
function conditions(
  state: MachineState,
  step: MachineStep,
  { end, guest }: { end?: MachineRecord['end']; guest?: Runtime['guest'] } = {},
) {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = {
    ...newRecord({ uid: 'u', driver: 'qemu', key: 'ns/x', machine: undefined, claim }),
    everRan: true,
    startedWith: { cpu: 4, memoryBytes: 2 ** 33, diskSizeBytes: 2 ** 40 },
    base: { path: '/none', digest: DIGEST, format: 'raw' as const, virtualSizeBytes: 1 },
    end,
  };
  const runtime = { ...newRuntime(record, '/none'), state, readiness: { ready: true, message: '' }, guest };
  const wanted = { deletion: undefined, desiredHash: undefined };
  const view = { runtime, step, wanted, accelerator: undefined, pendingResize: undefined };
  const { conditions: all = [] } = machineStatus(POD, view, ADDRESSES, '2030-01-01T00:00:00Z');
  return {
    ready: all.find(({ type }) => type === 'Ready'),
    disk: all.find(({ type }) => type === DISK_CONDITION),
    machine: all.find(({ type }) => type === MACHINE_CONDITION),
  };
}

test('a machine that runs says nothing of the disk', () => {
  const { ready, disk } = conditions(RUNNING, { kind: 'reached' });
  expect(ready?.status).toBe('True');
  expect(disk).toBeUndefined();
});

test('a paused machine is not ready, and says why', () => {
  const { ready, disk } = conditions({ ...RUNNING, guestStarted: false, paused: true }, { kind: 'reached' });
  const why = { status: 'False', reason: 'HostDiskFull', message: PAUSED_MESSAGE };
  expect([ready, disk]).toMatchObject([why, why]);
});

test('a machine whose memory has no room is ready, and says why it is not suspended', () => {
  const step = { kind: 'wait', until: 1, noRoomToSuspend: 'its memory is too large' } as const;
  const { ready, disk } = conditions(RUNNING, step);
  expect(ready?.status).toBe('True');
  const message = 'The machine is not suspended: its memory is too large';
  expect(disk).toMatchObject({ status: 'False', reason: 'NoRoomToSuspend', message });
});

test('a machine that has lost its disk reports no snapshot any more', () => {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const takenAt = '2030-01-01T00:00:00Z';
  const taken = { takenAt, consistency: 'Crash', sizeBytes: 1, storageBytes: 1 } as const;
  const reported = (failure: MachineRecord['failure']): unknown => {
    const known = newRecord({ uid: 'u', driver: 'qemu', key: 'ns/x', machine: undefined, claim });
    const runtime = newRuntime({ ...known, failure, snapshots: [{ uid: 's', taken }] }, '/none');
    const wanted = { deletion: undefined, desiredHash: undefined };
    const step = { kind: 'reached' } as const;
    const view = { runtime, step, wanted, accelerator: undefined, pendingResize: undefined };
    const { conditions: all = [] } = machineStatus(POD, view, ADDRESSES, takenAt);
    return JSON.parse(all.find(({ type }) => type === SNAPSHOTS_CONDITION)?.message ?? '');
  };
  const failed = { message: '', exitCode: 1, graceMilliseconds: 0 };
  expect(reported({ ...failed, reason: 'Crashed' })).toEqual([{ uid: 's', ...taken }]);
  expect(reported({ ...failed, reason: 'DiskLost' })).toEqual([]);
});

const WAITING = { kind: 'wait', until: 1 } as const;

test.each([
  ['Crashed', 'The hypervisor was ended by SIGKILL', 'Crashed: The hypervisor was ended by SIGKILL'],
  ['HostLost', 'The machine ended', 'HostLost: The machine ended'],
  ['GuestShutdown', 'The guest powered itself off', 'The guest powered itself off'],
] as const)(
  'a machine that waits for its next start after %s says how it ended',
  (how, message, reported) => {
    const { ready } = conditions({ kind: 'stopped' }, WAITING, { end: { how, message, at: 0 } });
    expect(ready).toMatchObject({ status: 'False', reason: 'Starting', message: reported });
  },
);

test.each(['x', '"', '\u0001'])('a report can be read, however long its message of %j is', (one) => {
  const message = `${one.repeat(10_000)}the end`;
  const facts = {
    addresses: Array.from({ length: 16 }, (_, at) => `2001:db8:1111:2222:3333:4444:5555:${4000 + at}`),
    os: '"'.repeat(128),
    hostName: 'x'.repeat(253),
  };
  const { machine } = conditions({ kind: 'stopped' }, WAITING, {
    end: { how: 'Crashed', message, at: 0 },
    guest: { connected: true, facts },
  });
  expect(machine?.message?.length).toBeLessThanOrEqual(4096);
  const report = machineReportSchema.parse(JSON.parse(machine?.message ?? ''));
  expect(report).toMatchObject({ cpu: 4, imageDigest: DIGEST, guestAgentConnected: true, guest: facts });
  expect(report.message).toMatch(/the end$/);
});

test('a machine tells whether its guest has the display that its VM asks for, in a report that can be read', () => {
  const message = `3840×2160 ${'"\u0001'.repeat(10_000)}`;
  const display = { ready: false, reason: 'ScreenCropped', message } as const;
  const end = { how: 'Crashed', message: '\u0001'.repeat(10_000), at: 0 } as const;
  const { machine, ready } = conditions({ ...RUNNING, display }, { kind: 'reached' }, { end });
  const report = machineReportSchema.parse(JSON.parse(machine?.message ?? ''));
  expect(report.display).toMatchObject({ ready: false, reason: 'ScreenCropped' });
  expect(report.display?.message).toMatch(/^3840×2160 \?/);
  expect(ready?.status).toBe('True');
  const { machine: stopped } = conditions({ kind: 'stopped' }, { kind: 'reached' });
  expect(JSON.parse(stopped?.message ?? '')).not.toHaveProperty('display');
});

test('a machine tells which identity its guest has, and why it cannot be suspended', () => {
  const identity = { ready: false, reason: 'IdentityOfImage', message: 'that of "the image"' } as const;
  const cannotSuspend = 'only guests with macOS';
  const { machine, ready } = conditions({ ...RUNNING, identity, cannotSuspend }, WAITING);
  expect(JSON.parse(machine?.message ?? '')).toMatchObject({
    identity: { ...identity, message: 'that of ?the image?' },
    cannotSuspend,
  });
  expect(ready?.status).toBe('True');
});

describe('an emulator', () => {
  const message = 'Android is booting; ADB does not answer yet';

  /** Returns the status of a Pod whose emulator has a process, with the content of its report. */
  function statusOf(
    change: Partial<MachineRecord>,
    state: MachineState = RUNNING,
    pod = POD,
    { trouble, step = { kind: 'reached' } }: { trouble?: Runtime['trouble']; step?: MachineStep } = {},
  ) {
    const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
    const emulator = { exposure: 'PairedVM' } as EmulatorMachine;
    const made = newRecord({
      uid: 'u',
      driver: 'emulator',
      key: 'ns/x',
      machine: undefined,
      emulator,
      claim,
    });
    const started = { created: true, everRan: true, startedAt: '2030-01-01T00:00:00Z', booted: false };
    const runtime: Runtime = {
      ...newRuntime({ ...made, ...started, ...change }, '/none'),
      state,
      readiness: { ready: false, message },
      address: '10.0.0.16',
      trouble,
    };
    const wanted = { deletion: undefined, desiredHash: undefined };
    const view = { runtime, step, wanted, accelerator: undefined, pendingResize: undefined };
    const status = machineStatus(pod, view, ADDRESSES, '2030-01-01T00:00:00Z');
    const said = status.conditions?.find(({ type }) => type === MACHINE_CONDITION)?.message ?? '';
    return { ...status, report: machineReportSchema.parse(JSON.parse(said)), view };
  }

  test('is Pending and starts until it has booted, with a message about what is awaited', () => {
    const { phase, containerStatuses, report } = statusOf({});
    expect(phase).toBe('Pending');
    expect(containerStatuses).toMatchObject([
      { started: false, state: { waiting: { reason: 'Starting', message } } },
    ]);
    expect(report).toMatchObject({ message, adb: { address: '10.0.0.16', port: 5555 } });
    const booted = statusOf({ booted: true });
    expect(booted).toMatchObject({ phase: 'Running', containerStatuses: [{ state: { running: {} } }] });
  });

  test('that cannot start yet names the cause, and starts from its creation on', () => {
    const trouble = { reason: 'VMNotRunning' as const, message: 'in words' };
    const step = { kind: 'create' } as const;
    const waits = statusOf({ startedAt: undefined }, { kind: 'absent' }, POD, { trouble, step });
    expect(phaseOf(waits.view)).toBe('Starting');
    expect(waits.containerStatuses).toMatchObject([
      { state: { waiting: { reason: 'VMNotRunning', message: 'in words' } } },
    ]);
    const made = statusOf({ startedAt: undefined }, { kind: 'absent' }, POD, { step });
    expect(made.containerStatuses).toMatchObject([{ state: { waiting: { reason: 'Starting' } } }]);
  });

  test('that is paused, or being paused, while it boots does not count as running', () => {
    const paused = statusOf({}, { ...RUNNING, paused: true });
    expect([paused.phase, phaseOf(paused.view)]).toEqual(['Pending', 'Starting']);
    expect(paused.conditions).toContainEqual(expect.objectContaining({ reason: 'HostDiskFull' }));
    const { runtime } = paused.view;
    runtime.operation = { kind: 'pause', phase: 'Running' } as NonNullable<Runtime['operation']>;
    expect(phaseOf(paused.view)).toBe('Starting');
  });

  test('that starts once more after a loss of its host leaves its Pod in phase Running', () => {
    const { phase, containerStatuses } = statusOf({}, RUNNING, { ...POD, status: { phase: 'Running' } });
    expect(phase).toBe('Running');
    expect(containerStatuses).toMatchObject([{ state: { waiting: { reason: 'Starting' } } }]);
  });

  test('with exposure Host answers at its port of the host, and without a process nowhere', () => {
    const port = { protocol: 'TCP' as const, hostPort: 5754, guestPort: 5555 };
    const open = { emulator: { exposure: 'Host' } as EmulatorMachine, automaticPorts: [port] };
    expect(statusOf(open).report.adb).toEqual({ address: '192.0.2.2', port: 5754 });
    expect(statusOf(open, { kind: 'stopped' }).report.adb).toBeUndefined();
    expect(statusOf({}, { kind: 'stopped' }).report.adb).toBeUndefined();
  });
});
