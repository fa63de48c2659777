import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { SNAPSHOT_LIMIT } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { machineDocument } from '../../test/fixtures/machines.ts';
import {
  type DiskSnapshot,
  type LaunchPlan,
  type MachineState,
  memoryWorkFolder,
} from '../drivers/driver.ts';
import { driverOfVM } from '../drivers/hostdrivers.ts';
import type { Need } from '../images/local/spacemeter.ts';
import type { PodHost } from './host.ts';
import {
  type MachineOperation,
  type MachineRecord,
  type MachineStep,
  newRecord,
  newRuntime,
  type Runtime,
  suspendedBytes,
} from './machine.ts';
import { MERGE_AT_ONCE } from './merges.ts';
import { isObsolete, plan, type Situation } from './plan.ts';
import { RecordStore } from './records.ts';
import { SnapshotShares } from './snapshotshares.ts';
import { STEPS } from './steps.ts';
import { startMachine } from './warmstart.ts';

const MACHINE = machineDocument({ namespace: 'ns', name: 'x', uid: 'vm' });
const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };
const TAKEN: DiskSnapshot = {
  takenAt: '2030-01-01T00:00:00Z',
  consistency: 'Crash',
  sizeBytes: 1,
  storageBytes: 1,
};
const DESIRED: Desired = { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 1 };
const [A, B] = ['a', 'b'].map((uid) => ({ uid, name: `name-${uid}` })) as [
  { uid: string; name: string },
  { uid: string; name: string },
];

function recordWith(change: Partial<MachineRecord> = {}): MachineRecord {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ uid: 'uid', key: 'ns/x', driver: 'qemu', machine: MACHINE, claim });
  return {
    ...record,
    created: true,
    running: true,
    everRan: true,
    acknowledged: true,
    released: false,
    ...change,
  };
}

function stepFor(desired: Partial<Desired>, change: Partial<MachineRecord> = {}, state = RUNNING): string {
  const situation: Partial<Situation> = {
    record: recordWith(change),
    state,
    desired: { ...DESIRED, ...desired },
  };
  return plan(situation as Situation, 0).kind;
}

describe('the plan of a machine', () => {
  it('takes missing snapshots one after the other, and removes those that the VM has no longer first', () => {
    expect(stepFor({})).toBe('reached');
    expect(stepFor({ snapshots: [A] })).toBe('snapshot');
    expect(stepFor({ snapshots: [A] }, { snapshots: [{ uid: 'a', taken: TAKEN }] })).toBe('reached');
    expect(stepFor({ snapshots: [A, B] }, { snapshots: [{ uid: 'a', taken: TAKEN }] })).toBe('snapshot');
    expect(stepFor({ snapshots: [B] }, { snapshots: [{ uid: 'a', taken: TAKEN }] })).toBe('dropSnapshots');
    const failure = { reason: 'NoDisk', message: '' } as const;
    expect(stepFor({ snapshots: [A] }, { snapshots: [{ uid: 'a', failure }] })).toBe('reached');
    // An agent gets no list from an operator that knows of no snapshot. It removes nothing then.
    expect(stepFor({}, { snapshots: [{ uid: 'a', taken: TAKEN }] })).toBe('reached');
  });

  it('takes one of a stopped or suspended machine, but none while its guest is paused or about to change', () => {
    expect(stepFor({ snapshots: [A], powerState: 'Stopped' }, { running: false }, { kind: 'stopped' })).toBe(
      'snapshot',
    );
    expect(
      stepFor({ snapshots: [A], powerState: 'Suspended' }, { running: false }, { kind: 'suspended' }),
    ).toBe('snapshot');
    expect(stepFor({ snapshots: [A] }, {}, { ...RUNNING, paused: true })).toBe('reached');
    expect(stepFor({ snapshots: [A], powerState: 'Stopped' })).toBe('stop');
    const ends = (kind: 'snapshot' | 'dropSnapshots', step: MachineStep): boolean =>
      isObsolete({ kind }, step, { desired: DESIRED });
    expect(ends('snapshot', { kind: 'stop', graceMilliseconds: 0 })).toBe(true);
    expect(ends('snapshot', { kind: 'snapshot' })).toBe(false);
    expect(ends('dropSnapshots', { kind: 'release', graceMilliseconds: 0 })).toBe(true);
    expect(ends('dropSnapshots', { kind: 'dropSnapshots' })).toBe(false);
  });

  it('ends a machine for a revert only if the host has the snapshot', () => {
    const revert = { revertRequestedAt: '1', revertTo: 'a', snapshots: [A] };
    expect(stepFor(revert, { snapshots: [{ uid: 'a', taken: TAKEN }] })).toBe('stop');
    expect(stepFor(revert)).toBe('revert');
    const off: MachineState = { kind: 'stopped' };
    expect(stepFor(revert, { running: false, snapshots: [{ uid: 'a', taken: TAKEN }] }, off)).toBe('revert');
  });
});

describe('a step of snapshots', () => {
  let host: PodHost;
  let runtime: Runtime;
  let asked: string[];
  let error: Error | undefined;
  /** Why the driver cannot keep the memory. */
  let refusal: Error | undefined;
  /** Snapshots that the driver has. */
  let found: Map<string, DiskSnapshot>;
  let needs: Need[];
  /** Machines whose snapshots were measured. */
  let measured: string[];
  let keptBytes: number;
  let freeBytes: number;

  beforeEach(() => {
    const directory = mkdtempSync(join(tmpdir(), 'berth-snapshots-'));
    onTestFinished(() => rmSync(directory, { recursive: true }));
    [asked, error, refusal, needs, measured] = [[], undefined, undefined, [], []];
    [found, keptBytes, freeBytes] = [new Map(), 0, 2 ** 40];
    const driver = {
      takeSnapshot: async (
        _folder: unknown,
        uid: string,
        _signal: unknown,
        { memory }: { memory: boolean },
      ) => {
        asked.push(memory ? `${uid} with memory` : uid);
        if (error !== undefined) {
          throw error;
        }
        return TAKEN;
      },
      requireMemory: async () => {
        if (refusal !== undefined) {
          throw refusal;
        }
      },
      findSnapshot: async (_folder: unknown, uid: string) => found.get(uid),
      snapshotBytes: async ({ uid }: { uid: string }) => {
        measured.push(uid);
        return keptBytes;
      },
      keepSnapshots: async (_folder: unknown, uids: Set<string>) => {
        asked.push(`keep ${[...uids].join()}`);
      },
      revert: async (...parameters: unknown[]) => {
        asked.push(`revert ${String(parameters[3])}`);
        (parameters[4] as AbortSignal).throwIfAborted();
      },
    };
    const parts = {
      records: new RecordStore(directory),
      drivers: new Map([['qemu', { driver }]]),
      logger: pino({ level: 'silent' }),
      events: { event: () => undefined },
    };
    const withRoom: PodHost['images']['withRoom'] = async (need, signal, work) => {
      needs.push(need);
      return await work(signal);
    };
    const images = { withRoom, freeBytes: async () => freeBytes };
    const space = { images, snapshotShares: new SnapshotShares(), machinesDirectory: directory };
    host = { ...parts, ...space, event: () => undefined } as unknown as PodHost;
    runtime = newRuntime(recordWith(), directory);
  });

  async function run(
    kind: 'snapshot' | 'dropSnapshots' | 'revert',
    desired: Partial<Desired>,
    abort = new AbortController(),
  ): Promise<void> {
    const operation = { desired: { ...DESIRED, ...desired }, abort };
    await STEPS[kind](host, runtime, operation as unknown as MachineOperation);
  }

  it('keeps what the host took, and forgets what the VM has no longer', async () => {
    await run('snapshot', { snapshots: [A, B] });
    await run('snapshot', { snapshots: [A, B] });
    expect(runtime.record.snapshots).toEqual([A, B].map(({ uid }) => ({ uid, taken: TAKEN })));
    expect(runtime.record.mergeDue).toBeUndefined();
    await run('dropSnapshots', { snapshots: [B] });
    expect(runtime.record.snapshots).toEqual([{ uid: 'b', taken: TAKEN }]);
    expect(asked).toEqual(['a', 'b', 'keep b']);
    expect(runtime.record.mergeDue).toEqual(MERGE_AT_ONCE);
  });

  it('fails a few times before the failure is final, and at once for a reason that stays', async () => {
    error = new Error('busy');
    for (const attempts of [0, 1, 2]) {
      runtime.failed = { kind: 'snapshot', attempts, notBefore: 0 };
      await expect(run('snapshot', { snapshots: [A, B] })).rejects.toThrow('busy');
      expect(runtime.record.snapshots).toBeUndefined();
    }
    expect(runtime.record.mergeDue).toBeUndefined();
    runtime.failed = { kind: 'snapshot', attempts: 3, notBefore: 0 };
    await run('snapshot', { snapshots: [A, B] });
    expect(runtime.record.mergeDue).toEqual(MERGE_AT_ONCE);
    error = new ReasonedError('NoDisk', 'The machine has no disk');
    await run('snapshot', { snapshots: [A, B] });
    expect(runtime.record.snapshots).toEqual([
      { uid: 'a', failure: { reason: 'SnapshotNotTaken', message: 'busy' } },
      { uid: 'b', failure: { reason: 'NoDisk', message: 'The machine has no disk' } },
    ]);
  });

  it('takes no more than a VM may have', async () => {
    const full = Array.from({ length: SNAPSHOT_LIMIT }, (_, index) => ({ uid: `${index}`, taken: TAKEN }));
    runtime = newRuntime(recordWith({ snapshots: full }), '/none');
    await run('snapshot', { snapshots: [...full.map(({ uid }) => ({ uid, name: uid })), A] });
    expect(asked).toEqual([]);
    expect(runtime.record.snapshots?.at(-1)?.failure?.reason).toBe('TooManySnapshots');
  });

  it('keeps the memory on request, if the guest can be renewed, while it has room for it twice', async () => {
    const snapshots = [{ ...A, memory: true as const }];
    await run('snapshot', { snapshots });
    const folder = memoryWorkFolder(runtime.folder);
    const bytes = 2 * suspendedBytes(runtime.record);
    expect(needs).toEqual([{ folder, tenant: 'ns', bytes, what: 'The memory of the VM', isAtOnce: true }]);
    runtime = newRuntime(recordWith({ machine: { ...MACHINE, os: 'Windows' } }), '/none');
    await run('snapshot', { snapshots });
    const failure = { reason: 'MemoryNotSaved', message: expect.stringContaining('Windows') as string };
    expect(runtime.record.snapshots).toEqual([{ uid: 'a', failure }]);
    expect(asked).toEqual(['a with memory']);
    const full = new ReasonedError('DiskFull', 'no room');
    Object.assign(host.images, { withRoom: async () => await Promise.reject(full) });
    runtime = newRuntime(recordWith(), '/none');
    await run('snapshot', { snapshots });
    expect(runtime.record.snapshots).toEqual([
      { uid: 'a', failure: { reason: 'DiskFull', message: 'no room' } },
    ]);
  });

  it('makes no room for a memory that the driver cannot keep', async () => {
    refusal = new ReasonedError('MemoryNotSaved', 'no guest agent');
    await run('snapshot', { snapshots: [{ ...A, memory: true }] });
    expect(runtime.record.snapshots).toEqual([
      { uid: 'a', failure: { reason: 'MemoryNotSaved', message: 'no guest agent' } },
    ]);
    expect([needs, asked]).toEqual([[], []]);
  });

  it('takes none that would give its namespace more than its share of the host, and says the numbers', async () => {
    [keptBytes, freeBytes] = [3 * 2 ** 30, 2 ** 30];
    await run('snapshot', { snapshots: [A] });
    const message = 'Snapshots of the namespace take 3Gi of their 2Gi on the host. This one adds 0';
    expect(runtime.record.snapshots).toEqual([{ uid: 'a', failure: { reason: 'DiskFull', message } }]);
    // A host of one namespace has no other one that could lack the space.
    Object.assign(host, { namespace: 'ns' });
    await run('snapshot', { snapshots: [A, B] });
    expect(asked).toEqual(['b']);
  });

  it('counts the snapshots of all VMs of the host, also those of a VM whose first one is under way, and no Emulator', async () => {
    for (const other of ['first', 'emulated']) {
      host.records.save({ ...recordWith(), uid: other, driver: other === 'first' ? 'qemu' : 'emulator' });
    }
    await run('snapshot', { snapshots: [A] });
    expect(measured).toEqual(['uid', 'first']);
    expect(asked).toEqual(['a']);
  });

  it('takes no second one after the death of an agent, also if there would be no room for it', async () => {
    found.set('a', TAKEN);
    [keptBytes, freeBytes] = [2 ** 30, 0];
    await run('snapshot', { snapshots: [A] });
    expect(runtime.record.snapshots).toEqual([{ uid: 'a', taken: TAKEN }]);
    expect(asked).toEqual([]);
  });

  it('a revert that is no longer wanted is not recorded as done', async () => {
    const unwanted = new AbortController();
    unwanted.abort(new Error('not wanted'));
    await expect(run('revert', { revertRequestedAt: '1' }, unwanted)).rejects.toThrow('not wanted');
    expect(runtime.record.revertedAt).toBeUndefined();
  });

  it('removes what a snapshot that has failed can have left', async () => {
    runtime = newRuntime(
      recordWith({ snapshots: [{ uid: 'a', failure: { reason: 'DiskFull', message: '' } }] }),
      '/none',
    );
    await run('dropSnapshots', { snapshots: [] });
    expect([asked, runtime.record.snapshots]).toEqual([['keep '], []]);
  });

  it('starts from the memory of the snapshot after a revert to it, and boots after a revert to another', async () => {
    const memory = { cpu: 1, bytes: 1 };
    const warmStart = { reason: 'Renewed' } as const;
    runtime = newRuntime(
      recordWith({
        warmStart,
        snapshots: [
          { uid: 'a', taken: { ...TAKEN, memory } },
          { uid: 'b', taken: TAKEN },
        ],
      }),
      '/none',
    );
    Object.assign(driverOfVM(host, runtime.record), {
      startFromMemory: async (...parameters: unknown[]) =>
        void asked.push(`from memory ${String(parameters[2])}`),
      start: async () => void asked.push('boot'),
    });
    const start = async (change: Partial<MachineRecord> = {}) => {
      Object.assign(runtime.record, change);
      const operation = { abort: new AbortController() } as MachineOperation;
      return await startMachine(host, runtime, {} as LaunchPlan, operation);
    };
    await run('revert', { revertRequestedAt: '1', revertTo: 'a' });
    expect(runtime.record.warmStart).toBeUndefined();
    expect(await start()).toEqual(warmStart);
    expect(await start({ machine: { ...MACHINE, start: 'Cold' } })).toMatchObject({ reason: 'ColdWanted' });
    await run('revert', { revertRequestedAt: '2', revertTo: 'b' });
    expect(await start()).toBeUndefined();
    expect(asked).toEqual(['revert a', 'from memory undefined', 'boot', 'revert b', 'boot']);
  });

  it('reverts to no snapshot that the host does not have', async () => {
    const revert = { revertRequestedAt: '1', revertTo: 'a' };
    await expect(run('revert', revert)).rejects.toMatchObject({ reason: 'SnapshotNotFound' });
    expect(asked).toEqual([]);
    expect(runtime.record.revertedAt).toBeUndefined();
  });
});
