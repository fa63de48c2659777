import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { LAYERS_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { machineDocument } from '../../test/fixtures/machines.ts';
import { makeFolder } from '../../test/support/folder.ts';
import type { MachineState } from '../drivers/driver.ts';
import type { PodHost } from './host.ts';
import { type MachineRecord, type MergeDue, newRecord, type Runtime, type WantedMachine } from './machine.ts';
import { Machines } from './machines.ts';
import { MERGE_AT_ONCE } from './merges.ts';
import { RecordStore } from './records.ts';
import { machineStatus } from './status.ts';

const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };
const OFF: MachineState = { kind: 'stopped' };
const DESIRED = { powerState: 'Running', restartPolicy: 'Always', cpu: 1, memoryBytes: 2 ** 28 } as const;
const WANTED: WantedMachine = {
  pod: undefined,
  desired: DESIRED,
  desiredHash: 'hash',
  deletion: undefined,
  activeDeadline: undefined,
  graceMilliseconds: 0,
};
const STOPPED: WantedMachine = { ...WANTED, desired: { ...DESIRED, powerState: 'Stopped' } };
const MINUTE_MILLISECONDS = 60_000;
/** Waits after each attempt but the last one. */
const WAITS = [1, 2, 4, 8, 16, 32, 60].map((minutes) => minutes * MINUTE_MILLISECONDS);

let directory: string;
let machines: Machines;
let runtime: Runtime;
let state: MachineState;
/** Time of the host in milliseconds since the epoch. */
let now: number;
/** Steps that the driver was asked for. */
let asked: string[];
/** Reasons of the Events. */
let eventReasons: string[];
/** The last merge that was begun. */
let merging: PromiseWithResolvers<boolean>;

/** Begins a run of the agent. A record is made by the first one. */
function beginAgent(change: Partial<MachineRecord> = {}): void {
  const step = (name: string, next: MachineState) => async () => {
    asked.push(name);
    state = next;
  };
  const mergeLayers = async (_folder: unknown, signal: AbortSignal) => {
    asked.push('merge');
    merging = Promise.withResolvers();
    signal.addEventListener('abort', () => merging.reject(signal.reason));
    return await merging.promise;
  };
  const driver = {
    inspect: async () => state,
    start: step('start', RUNNING),
    stop: step('stop', OFF),
    suspend: step('suspend', { kind: 'suspended' }),
    keepSnapshots: step('keep', RUNNING),
    mergeLayers,
  };
  const host = {
    records: new RecordStore(directory),
    drivers: new Map([['qemu', { driver, accelerators: [] }]]),
    machinesDirectory: directory,
    network: { name: 'user', detach: async () => undefined },
    monitor: { faultyChecks: 0 },
    disk: { wish: () => undefined, roomBytes: Number.POSITIVE_INFINITY, startsAnew: () => undefined },
    images: { release: () => undefined },
    event: (_object: unknown, { reason }: { reason: string }) => eventReasons.push(reason),
    fenced: () => false,
    logger: pino({ level: 'silent' }),
  } as unknown as PodHost;
  const machine = machineDocument({ namespace: 'default', name: 'a', uid: 'vm' });
  const claim = { slots: 1, cpuMillis: 1000, memoryBytes: 2 ** 28, diskBytes: 0, ports: [] };
  const made = newRecord({ uid: 'a', key: 'default/a', driver: 'qemu', machine, claim });
  const began = { created: true, running: true, everRan: true, acknowledged: true, released: false };
  const record = host.records.get('a') ?? { ...made, ...began };
  host.records.save({ ...record, ...change });
  machines = new Machines(host, () => undefined);
  runtime = machines.runtime(host.records.get('a') as MachineRecord);
}

beforeEach(() => {
  now = Date.parse('2030-01-01T00:00:00Z');
  vi.spyOn(Date, 'now').mockImplementation(() => now);
  directory = makeFolder();
  [asked, eventReasons, state] = [[], [], RUNNING];
  beginAgent({ mergeDue: MERGE_AT_ONCE });
});

afterEach(() => {
  vi.restoreAllMocks();
});

/** Drives the machine, and returns the step after which the agent is idle. */
async function drive(wanted = WANTED): Promise<string> {
  const { step } = await machines.drive(runtime, wanted);
  await expect.poll(() => runtime.operation).toBeUndefined();
  return step.kind;
}

/** Lets the merge that is under way fail. */
async function failMerge(error: Error): Promise<void> {
  merging.reject(error);
  await expect.poll(() => runtime.merge).toBeUndefined();
}

/** Returns what the Pod says of the layers. */
function said(): string | undefined {
  const pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'x', namespace: 'ns', uid: 'u' },
    spec: { containers: [{ name: MACHINE_CONTAINER, image: 'x' }] },
  };
  const wanted = { deletion: undefined, desiredHash: undefined };
  const step = { kind: 'reached' } as const;
  const view = { runtime, step, wanted, accelerator: undefined, pendingResize: undefined };
  const addresses = { address: '192.0.2.1', forwardAddress: '192.0.2.1' };
  const { conditions = [] } = machineStatus(pod, view, addresses, '2030-01-01T00:00:00Z');
  const found = conditions.find(({ type }) => type === LAYERS_CONDITION);
  return found && `${found.status} ${found.reason}: ${found.message}`;
}

function due(): MergeDue | undefined {
  return runtime.record.mergeDue;
}

it('the machine is inspected while layers are merged, is as wanted, and one step of it ends the merge', async () => {
  expect(await drive()).toBe('reached');
  state = { ...RUNNING, pid: 2 };
  expect(await drive()).toBe('reached');
  expect(runtime.state).toEqual(state);
  expect(asked).toEqual(['merge']);
  expect(await drive(STOPPED)).toBe('stop');
  expect(asked).toEqual(['merge', 'stop']);
  // A merge that was ended does not count, and begins again a minute later.
  await expect.poll(due).toEqual({ attempts: 0, notBefore: now + MINUTE_MILLISECONDS });
  expect(await drive(STOPPED)).toBe('reached');
  expect(asked).toEqual(['merge', 'stop']);
  now += MINUTE_MILLISECONDS;
  await drive(STOPPED);
  merging.resolve(true);
  await expect.poll(due).toBeUndefined();
  expect(asked).toEqual(['merge', 'stop', 'merge']);
});

it('a merge that fails is tried again after longer and longer waits, also by the next agent, and the last failure is told', async () => {
  for (const [index, wait] of WAITS.entries()) {
    await drive();
    await failMerge(new ReasonedError('DiskFull', `full ${index}`));
    expect(due()).toEqual({
      attempts: index + 1,
      notBefore: now + wait,
      failure: `full ${index}`,
    });
    beginAgent();
    now += wait - 1;
    await drive();
    expect([asked.length, said()]).toEqual([index + 1, undefined]);
    now += 1;
  }
  await drive();
  expect(said()).toBeUndefined();
  await failMerge(new Error(`no room in ${directory}/disk ${'x'.repeat(1_000)}`));
  beginAgent();
  expect(said()).toMatch(/^False LayersNotMerged: .* in 8 attempts\. .* no room in disk x{250,300}$/);
  expect(eventReasons).toEqual(['LayersNotMerged']);
  now += 24 * 60 * MINUTE_MILLISECONDS;
  await drive();
  expect(asked).toHaveLength(WAITS.length + 1);
  // The removal of another snapshot.
  Object.assign(runtime.record, { snapshots: [{ uid: 's', failure: { reason: 'NoDisk', message: '' } }] });
  await drive({ ...WANTED, desired: { ...DESIRED, snapshots: [] } });
  await drive();
  expect(said()).toBeUndefined();
  expect(asked.slice(WAITS.length + 1)).toEqual(['keep', 'merge']);
});

it('an agent that dies in each merge does not merge without end, and says so', async () => {
  for (const wait of [...WAITS, MINUTE_MILLISECONDS]) {
    expect(said()).toBeUndefined();
    await drive();
    beginAgent();
    now += wait;
  }
  await drive();
  expect(asked).toHaveLength(WAITS.length + 1);
  expect(said()).toContain('The agent ended during the last attempt');
});

it('what only a machine that is off can merge waits until it is off', async () => {
  await drive();
  merging.resolve(false);
  await expect.poll(due).toMatchObject({ untilOff: true });
  await drive();
  expect(asked).toEqual(['merge']);
  await drive(STOPPED);
  await drive(STOPPED);
  expect(asked).toEqual(['merge', 'stop', 'merge']);
  await failMerge(new ReasonedError('Interrupted', 'The agent ended'));
  expect(due()).toMatchObject({ attempts: 0, untilOff: true });
});

it('a host merges the layers of one machine at a time', async () => {
  const other = machines.runtime({ ...runtime.record, uid: 'b', key: 'default/b' });
  await drive();
  await machines.drive(other, WANTED);
  expect(asked).toEqual(['merge']);
  merging.resolve(true);
  await expect.poll(due).toBeUndefined();
  await machines.drive(other, WANTED);
  expect(asked).toEqual(['merge', 'merge']);
});

it('no merge begins for a guest that is paused, a machine that has failed or one that is deleted', async () => {
  state = { ...RUNNING, paused: true };
  await drive();
  state = RUNNING;
  Object.assign(runtime.record, { failure: { reason: 'Crashed', message: '' }, released: true });
  expect(await drive()).toBe('reached');
  expect(asked).toEqual([]);
});
