import { expect, test } from 'vitest';
import { machineReportSchema } from '../../api/v1alpha1/machine.ts';
import { DISK_CONDITION, MACHINE_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { MachineState } from '../drivers/driver.ts';
import { type MachineRecord, newRecord, newRuntime, type Runtime, type Step } from './machine.ts';
import { machineStatus } from './status.ts';

const POD: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'x', namespace: 'ns', uid: 'u' },
  spec: { containers: [{ name: MACHINE_CONTAINER, image: 'x' }] },
};
const DIGEST = `sha256:${'0'.repeat(64)}`;
const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };

/** Returns the conditions of a Pod whose machine has a ready guest. */
function conditions(
  state: MachineState,
  step: Step,
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
  const { conditions: all = [] } = machineStatus(POD, view, '127.0.0.1', '2030-01-01T00:00:00Z');
  return {
    ready: all.find(({ type }) => type === 'Ready'),
    disk: all.find(({ type }) => type === DISK_CONDITION),
    machine: all.find(({ type }) => type === MACHINE_CONDITION),
  };
}

test('a machine that runs says nothing of the disk', () => {
  const { ready, disk } = conditions(RUNNING, { kind: 'settled' });
  expect(ready?.status).toBe('True');
  expect(disk).toBeUndefined();
});

test('a paused machine is not ready, and says why', () => {
  const { ready, disk } = conditions({ ...RUNNING, guestStarted: false, paused: true }, { kind: 'settled' });
  expect(ready).toMatchObject({ status: 'False', reason: 'HostDiskFull' });
  expect(disk).toMatchObject({ status: 'False', reason: 'HostDiskFull', message: ready?.message });
});

test('a machine whose memory has no room is ready, and says why it is not suspended', () => {
  const step = { kind: 'wait', until: 1, noRoomToSuspend: 'its memory is too large' } as const;
  const { ready, disk } = conditions(RUNNING, step);
  expect(ready?.status).toBe('True');
  const message = 'The machine is not suspended: its memory is too large';
  expect(disk).toMatchObject({ status: 'False', reason: 'NoRoomToSuspend', message });
});

const WAITING = { kind: 'wait', until: 1 } as const;

test.each([
  ['Crashed', 'The hypervisor was ended by SIGKILL', 'Crashed: The hypervisor was ended by SIGKILL'],
  ['HostLost', 'The machine ended', 'HostLost: The machine ended'],
  ['GuestShutdown', 'The guest powered itself off', 'The guest powered itself off'],
] as const)('a machine that waits for its next start after %s says how it ended', (how, message, told) => {
  const { ready } = conditions({ kind: 'stopped' }, WAITING, { end: { how, message, at: 0 } });
  expect(ready).toMatchObject({ status: 'False', reason: 'Starting', message: told });
});

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
  const { machine, ready } = conditions({ ...RUNNING, display }, { kind: 'settled' }, { end });
  const report = machineReportSchema.parse(JSON.parse(machine?.message ?? ''));
  expect(report.display).toMatchObject({ ready: false, reason: 'ScreenCropped' });
  expect(report.display?.message).toMatch(/^3840×2160 \?/);
  expect(ready?.status).toBe('True');
  const { machine: stopped } = conditions({ kind: 'stopped' }, { kind: 'settled' });
  expect(JSON.parse(stopped?.message ?? '')).not.toHaveProperty('display');
});
