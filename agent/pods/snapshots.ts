/** The steps that take and remove snapshots of a machine's disk, one snapshot at a time. */
import { Gauge, type Registry } from 'prom-client';
import type { WantedSnapshot } from '../../api/v1alpha1/machine.ts';
import { SNAPSHOT_LIMIT } from '../../api/v1alpha1/names.ts';
import { type Reason, ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { messageWithoutPaths } from '../../base/errors.ts';
import { refOf } from '../../kube/objects.ts';
import { type DiskSnapshot, memoryWorkFolder } from '../drivers/driver.ts';
import { driverOfVM } from '../drivers/hostdrivers.ts';
import { type PodHost, tell, warn } from './host.ts';
import {
  type MachineOperation,
  type MachineRecord,
  needed,
  newRuntime,
  type Runtime,
  suspendedBytes,
} from './machine.ts';
import { MERGE_AT_ONCE } from './merges.ts';
import { nextSnapshot, surplusSnapshots } from './plan.ts';
import type { RecordStore } from './records.ts';

/** Number of attempts to take a snapshot. The waits between them take 7 s in total, and then the moment of the request is long over. */
const SNAPSHOT_ATTEMPTS = 4;
/** Reasons for which another attempt would fail, too. */
const FINAL_REASONS: ReadonlySet<Reason> = new Set([
  'NoDisk',
  'TooManySnapshots',
  'MemoryNotSaved',
  'DiskFull',
]);
/** Copies of the memory on the disk while a snapshot keeps it: the stream, and the files that are made of it. */
const MEMORY_COPIES = 2;

/** Takes the next snapshot. After the last attempt, its failure is recorded, and the machine goes on without it. */
export async function takeSnapshot(
  host: PodHost,
  runtime: Runtime,
  operation: MachineOperation,
): Promise<void> {
  const { record } = runtime;
  const wanted = nextSnapshot(record, needed(operation.desired));
  if (wanted === undefined) {
    return;
  }
  const { uid, name } = wanted;
  const known = record.snapshots ?? [];
  try {
    const taken = await takeOne(host, runtime, wanted, operation.abort.signal);
    host.records.update(record, { snapshots: [...known, { uid, taken }] });
    tell(host, record, 'SnapshotTaken', 'Snapshot', `The snapshot ${name} was taken`);
  } catch (error) {
    const reason = reasonIn(error) ?? 'SnapshotNotTaken';
    if (operation.abort.signal.aborted || !isLast(runtime, reason)) {
      throw error;
    }
    const message = messageWithoutPaths(error);
    // A snapshot that fails late leaves a layer.
    host.records.update(record, {
      snapshots: [...known, { uid, failure: { reason, message } }],
      mergeDue: MERGE_AT_ONCE,
    });
    warn(host, record, reason, 'Snapshot', `The snapshot ${name} was not taken: ${message}`);
  }
}

async function takeOne(
  host: PodHost,
  { record, folder }: Runtime,
  { uid, memory: wanted }: WantedSnapshot,
  signal: AbortSignal,
): Promise<DiskSnapshot> {
  const driver = driverOfVM(host, record);
  // The agent can have died behind a snapshot that it had not recorded yet.
  const known = await driver.findSnapshot(folder, uid);
  if (known !== undefined) {
    return known;
  }
  if (takenUids(record).length >= SNAPSHOT_LIMIT) {
    throw new ReasonedError('TooManySnapshots', `The VM has ${SNAPSHOT_LIMIT} snapshots already`);
  }
  const memory = wanted === true;
  const bytes = memory ? suspendedBytes(requireLinux(record)) : 0;
  const take = async (either: AbortSignal) => await driver.takeSnapshot(folder, uid, either, { memory });
  return await withinShare(host, record, bytes, async () =>
    memory ? await withRoom(host, { record, folder }, signal, take) : await take(signal),
  );
}

/** Checks what the driver does not know. @throws ReasonedError `MemoryNotSaved` when the memory of the machine cannot be kept. */
function requireLinux(record: Readonly<MachineRecord>): Readonly<MachineRecord> {
  const { os = 'Linux' } = record.machine ?? {};
  if (os !== 'Linux') {
    const message = `A guest with ${os} cannot be renewed after a revert. Take a snapshot without the memory`;
    throw new ReasonedError('MemoryNotSaved', message);
  }
  return record;
}

/**
 * Runs `take` while the disk has room for the memory of the machine. Other snapshots, images and copies cannot take this room. Nothing is removed for
 * a memory that the driver cannot keep.
 */
async function withRoom<T>(
  host: PodHost,
  { record, folder }: Pick<Runtime, 'record' | 'folder'>,
  signal: AbortSignal,
  take: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  await driverOfVM(host, record).requireMemory(folder, signal);
  const need = {
    folder: memoryWorkFolder(folder),
    tenant: tenantOf(record),
    bytes: MEMORY_COPIES * suspendedBytes(record),
    what: 'The memory of the VM',
    isAtOnce: true,
  };
  return await host.images.withRoom(need, signal, take);
}

/**
 * Runs `take` if the namespace of the machine may have `bytes` more bytes of snapshots on this host. A host of one namespace has no other that
 * could lack the space.
 */
async function withinShare<T>(
  host: PodHost,
  record: Readonly<MachineRecord>,
  bytes: number,
  take: () => Promise<T>,
): Promise<T> {
  if (host.namespace !== undefined) {
    return await take();
  }
  // A machine without a record of snapshots can have one that is under way.
  const others = host.records
    .list()
    .filter(({ driver, uid }) => host.drivers.has(driver) && uid !== record.uid);
  const kept = [record, ...others].map(async (one) => ({
    tenants: [tenantOf(one)],
    sizeBytes: await driverOfVM(host, one).snapshotBytes(newRuntime(one, host.machinesDirectory).folder),
  }));
  const space = { kept: await Promise.all(kept), freeBytes: await host.images.freeBytes() };
  return await host.snapshotShares.within({ tenant: tenantOf(record), bytes }, space, take);
}

function tenantOf({ key }: Readonly<MachineRecord>): string {
  return refOf(key).namespace ?? '';
}

/** Returns the uids of the snapshots that the host has. */
function takenUids({ snapshots = [] }: Readonly<MachineRecord>): string[] {
  return snapshots.filter((one) => one.taken !== undefined).map(({ uid }) => uid);
}

function isLast({ failed }: Readonly<Runtime>, reason: Reason): boolean {
  const attempts = failed?.kind === 'snapshot' ? failed.attempts + 1 : 1;
  return FINAL_REASONS.has(reason) || attempts >= SNAPSHOT_ATTEMPTS;
}

/** Removes the snapshots that the VM has no longer. */
export async function dropSnapshots(
  host: PodHost,
  runtime: Runtime,
  operation: MachineOperation,
): Promise<void> {
  const { record, folder } = runtime;
  const surplus = surplusSnapshots(record, needed(operation.desired));
  const snapshots = (record.snapshots ?? []).filter((one) => !surplus.includes(one));
  // A snapshot that has failed can have left files, too.
  const uids = new Set(takenUids({ ...record, snapshots }));
  await driverOfVM(host, record).keepSnapshots(folder, uids, operation.abort.signal);
  host.records.update(record, { snapshots, mergeDue: MERGE_AT_ONCE });
}

/** Exports the space of all snapshots on this host. */
export function exportSnapshotBytes(registry: Registry, records: Pick<RecordStore, 'list'>): void {
  const gauge: Gauge = new Gauge({
    name: 'berth_snapshot_bytes',
    help: 'Bytes on the disk of this host that only the snapshots of VMs needed when they were taken',
    registers: [registry],
    collect: () => {
      const all = records.list().flatMap(({ snapshots = [] }) => snapshots);
      gauge.set(all.reduce((sum, { taken }) => sum + (taken?.storageBytes ?? 0), 0));
    },
  });
}
