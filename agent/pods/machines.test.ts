import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, type MockInstance, vi } from 'vitest';
import type { MachineState, StopOptions } from '../drivers/driver.ts';
import type { PodHost } from './host.ts';
import {
  newRecord,
  type MachineOperation,
  type Runtime,
  type MachineStep,
  type WantedMachine,
} from './machine.ts';
import { Machines, type MachineProgress } from './machines.ts';
import { RecordStore } from './records.ts';
import { makeFolder } from '../../test/support/folder.ts';

const CLAIM = { slots: 1, cpuMillis: 1000, memoryBytes: 2 ** 28, diskBytes: 0, ports: [] };
const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };
/** A machine that shall be suspended. */
const WANTED: WantedMachine = {
  pod: undefined,
  desired: { powerState: 'Suspended', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 },
  desiredHash: 'hash',
  deletion: undefined,
  activeDeadline: undefined,
  graceMilliseconds: 0,
};
/** Wait after the first failure of a step. */
const FIRST_WAIT_MILLISECONDS = 1_000;

let directory: string;
let machines: Machines;
let runtime: Runtime;
/** Steps that the driver was asked for: `discard` is a stop of a machine whose disk nobody needs. Each of them fails. */
let asked: string[];
let clock: MockInstance<() => number>;

beforeEach(() => {
  directory = makeFolder();
  asked = [];
  clock = vi.spyOn(performance, 'now').mockReturnValue(0);
  const failing = (name: string) => async () => {
    asked.push(name);
    throw new Error(`${name} failed`);
  };
  const stop = async (_folder: unknown, { discard }: StopOptions) =>
    await failing(discard?.aborted === true ? 'discard' : 'stop')();
  const driver = { inspect: async () => RUNNING, suspend: failing('suspend'), stop };
  const host = {
    records: new RecordStore(directory),
    drivers: new Map([['qemu', { driver, accelerators: [] }]]),
    machinesDirectory: directory,
    network: { name: 'user' },
    monitor: { faultyChecks: 0 },
    disk: { wish: () => undefined, roomBytes: Number.POSITIVE_INFINITY },
    fenced: () => false,
    logger: pino({ level: 'silent' }),
  } as unknown as PodHost;
  const record = newRecord({ uid: 'a', key: 'default/a', driver: 'qemu', machine: undefined, claim: CLAIM });
  Object.assign(record, { created: true, running: true, everRan: true, acknowledged: true, released: false });
  host.records.save(record);
  machines = new Machines(host, () => undefined);
  runtime = machines.runtime(record);
});

afterEach(() => {
  vi.restoreAllMocks();
});

/** Returns the progress after a step under way, if any, has ended. */
async function drive(wanted: WantedMachine): Promise<MachineProgress> {
  const progress = await machines.drive(runtime, wanted);
  await expect.poll(() => runtime.operation).toBeUndefined();
  return progress;
}

/** Drives the machine, and checks that its next step waits for the whole first wait. */
async function expectWait(kind: MachineStep['kind'], wanted: WantedMachine): Promise<void> {
  const before = Date.now();
  const { step, again = 0 } = await drive(wanted);
  expect(step.kind).toBe(kind);
  expect(again).toBeGreaterThanOrEqual(before + FIRST_WAIT_MILLISECONDS);
  expect(again).toBeLessThanOrEqual(Date.now() + FIRST_WAIT_MILLISECONDS);
}

it('a step that failed waits before its next try, and longer after each failure', async () => {
  await drive(WANTED);
  await expectWait('suspend', WANTED);
  expect(asked).toEqual(['suspend']);
  clock.mockReturnValue(FIRST_WAIT_MILLISECONDS);
  await drive(WANTED);
  expect(asked).toEqual(['suspend', 'suspend']);
  expect(runtime.failed).toMatchObject({ attempts: 2, notBefore: 3 * FIRST_WAIT_MILLISECONDS });
});

it('a step that failed does not delay a deletion, and a deletion that failed waits as well', async () => {
  await drive(WANTED);
  const deleted = { ...WANTED, deletion: { deadline: Date.now() } };
  expect(await drive(deleted)).toMatchObject({ step: { kind: 'release' }, again: undefined });
  await expectWait('release', deleted);
  expect(asked).toEqual(['suspend', 'discard']);
});

it('a revert discards the machine first, and a stop does not', async () => {
  const { desired } = WANTED;
  const stopped = { ...WANTED, desired: { ...desired, powerState: 'Stopped' } as typeof desired };
  await drive({ ...WANTED, desired: { ...desired, revertRequestedAt: '1' } as typeof desired });
  clock.mockReturnValue(FIRST_WAIT_MILLISECONDS);
  await drive(stopped);
  expect(asked).toEqual(['discard', 'stop']);
});

it('a clock of the host that is set back does not lengthen the wait', async () => {
  await drive(WANTED);
  vi.spyOn(Date, 'now').mockReturnValue(Date.now() - 3_600_000);
  await expectWait('suspend', WANTED);
});

it('a start that waits for a copy of the disk ends when the Pod is deleted or the VM is stopped', async () => {
  const desired = { ...WANTED.desired, powerState: 'Running' } as NonNullable<WantedMachine['desired']>;
  const ends: WantedMachine[] = [
    { ...WANTED, desired, deletion: { deadline: Date.now() } },
    { ...WANTED, desired: { ...desired, powerState: 'Stopped' } },
  ];
  for (const end of ends) {
    const abort = new AbortController();
    runtime.state = { kind: 'stopped' };
    runtime.operation = {
      kind: 'start',
      abort,
      hurry: new AbortController(),
      discard: new AbortController(),
    } as unknown as MachineOperation;
    Object.assign(runtime.record, { running: false });
    await machines.drive(runtime, { ...WANTED, desired });
    expect(abort.signal.aborted).toBe(false);
    await machines.drive(runtime, end);
    expect(abort.signal.aborted).toBe(true);
  }
});

it.each(['stop', 'release'] as const)(
  'a %s under way learns when nothing of the machine is needed any more: at the end of the grace period of its deletion',
  async (kind) => {
    const deadline = Date.now() + 30_000;
    const [hurry, discard] = [new AbortController(), new AbortController()];
    runtime.operation = {
      kind,
      abort: new AbortController(),
      hurry,
      discard,
      deadline,
    } as unknown as MachineOperation;
    await machines.drive(runtime, WANTED);
    const leaving = { ...WANTED, deletion: { deadline } };
    expect(await machines.drive(runtime, leaving)).toMatchObject({ again: deadline });
    expect(discard.signal.aborted).toBe(false);
    vi.spyOn(Date, 'now').mockReturnValue(deadline);
    expect(await machines.drive(runtime, leaving)).toMatchObject({ again: undefined });
    expect(discard.signal.aborted).toBe(true);
  },
);

it('a reset that is under way ends when the Pod is deleted, and not when the VM is stopped', async () => {
  const desired = { ...WANTED.desired, revertRequestedAt: '1' } as NonNullable<WantedMachine['desired']>;
  const abort = new AbortController();
  const others = { hurry: new AbortController(), discard: new AbortController() };
  runtime.state = { kind: 'stopped' };
  runtime.operation = { kind: 'revert', abort, ...others } as unknown as MachineOperation;
  Object.assign(runtime.record, { running: false });
  await machines.drive(runtime, { ...WANTED, desired: { ...desired, powerState: 'Stopped' } });
  expect(abort.signal.aborted).toBe(false);
  await machines.drive(runtime, { ...WANTED, desired, deletion: { deadline: Date.now() } });
  expect(abort.signal.aborted).toBe(true);
});
