import { expect, it } from 'vitest';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import type { MachineState } from '../drivers/driver.ts';
import type { PodHost } from './host.ts';
import { type MachineRecord, newRecord, newRuntime, type MachineOperation } from './machine.ts';
import { plan, type Situation } from './plan.ts';
import { RecordStore } from './records.ts';
import { reportOf } from './status.ts';
import { STEPS } from './steps.ts';
import { makeFolder } from '../../test/support/folder.ts';

const DESIRED: Desired = { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 1 };
const CLAIM = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };

function runningRecord(): MachineRecord {
  const record = newRecord({ uid: 'uid', key: 'ns/x', driver: 'qemu', machine: undefined, claim: CLAIM });
  return { ...record, created: true, running: true, everRan: true, released: false };
}

function stopsIn(record: MachineRecord): number | undefined {
  const facts = { accelerator: undefined, desiredHash: undefined, forwardAddress: '', message: undefined };
  return reportOf(newRuntime(record, '/none'), facts).stops;
}

it.each([
  ['stop', { powerState: 'Stopped' }, 1],
  ['stop', { powerState: 'Suspended' }, 1],
  ['stop', { restartRequestedAt: '1' }, 0],
  ['suspend', { powerState: 'Suspended' }, 1],
] as const)('%s towards %o, also if its step is repeated, reports %i stops', async (kind, change, stops) => {
  const directory = makeFolder();
  const record = runningRecord();
  const refuses = (): never => {
    throw new Error('not yet');
  };
  const parts = { records: new RecordStore(directory), drivers: new Map() };
  const host = parts as unknown as PodHost;
  const [hurry, discard] = [new AbortController(), new AbortController()];
  const operation = { desired: { ...DESIRED, ...change }, hurry, discard };
  for (const step of [refuses, (): void => undefined]) {
    parts.drivers.set('qemu', { driver: { stop: step, suspend: step } });
    const done = STEPS[kind](host, newRuntime(record, directory), operation as unknown as MachineOperation);
    await done.catch(() => undefined);
  }
  expect(stopsIn(record)).toBe(stops);
  expect(new RecordStore(directory).get('uid')?.stops ?? 0).toBe(stops);
});

const CRASHED: MachineState = { kind: 'exited', reason: 'Crashed', message: 'x' };
const SHUTDOWN: MachineState = { kind: 'exited', reason: 'GuestShutdown', message: 'x' };

it.each([
  ['rests after its own shutdown', {}, SHUTDOWN, 1],
  ['rests under OnFailure after its own shutdown', { restartPolicy: 'OnFailure' }, SHUTDOWN, 1],
  ['starts again under Always', { restartPolicy: 'Always' }, SHUTDOWN, 0],
  ['starts again, because a restart is wanted', { restartRequestedAt: '1' }, SHUTDOWN, 0],
  ['starts again after a revert', { revertRequestedAt: '1' }, SHUTDOWN, 0],
  ['starts again under OnFailure after a crash', { restartPolicy: 'OnFailure' }, CRASHED, 0],
  ['rests after a crash, because it is to be stopped', { powerState: 'Stopped' }, CRASHED, 1],
] as const)('a machine that %s', (_, change, state, stops) => {
  const record = runningRecord();
  const situation: Partial<Situation> = { record, state, desired: { ...DESIRED, ...change } };
  const step = plan(situation as Situation, 0);
  expect(step).toMatchObject({ kind: 'note', change: { running: false } });
  expect(stopsIn({ ...record, ...(step.kind === 'note' && step.change) })).toBe(stops);
});

it('an emulator reports no stops', () => {
  expect(stopsIn({ ...runningRecord(), emulator: {} as EmulatorMachine })).toBeUndefined();
});
