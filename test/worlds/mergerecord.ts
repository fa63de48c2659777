/** The record by which agents know that a merge of layers is left to do. Each change of it is a step at which an agent can die. */
import { join } from 'node:path';
import { pino } from 'pino';
import type { QemuDriver } from '../../agent/drivers/qemu/driver.ts';
import type { PodHost } from '../../agent/pods/host.ts';
import { type MachineRecord, type MergeDue, newRecord, newRuntime } from '../../agent/pods/machine.ts';
import { beginMerge, MERGE_AT_ONCE } from '../../agent/pods/merges.ts';
import { RecordStore } from '../../agent/pods/records.ts';
import { type LayeredMachine, UID } from './layeredmachine.ts';
import { lives } from './lives.ts';

class SteppingRecords extends RecordStore {
  override update(record: MachineRecord, change: Partial<MachineRecord>): void {
    lives.getStore()?.step();
    super.update(record, change);
  }
}

function recordsOf({ directory }: LayeredMachine): RecordStore {
  return new SteppingRecords(join(directory, 'pods'));
}

/** Returns the merge that is left to do; undefined if there is none. */
export function dueMerge(machine: LayeredMachine): MergeDue | undefined {
  return recordsOf(machine).get(UID)?.mergeDue;
}

/** Records that a merge is due, as the removal of a snapshot does. */
export function noteMerge(machine: LayeredMachine): void {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ uid: UID, key: 'team/vm', driver: 'qemu', machine: undefined, claim });
  recordsOf(machine).save({ ...record, mergeDue: MERGE_AT_ONCE });
}

/** Merges layers if the record says that a merge is due, as an agent does that has just been started. */
export async function mergeIfDue(machine: LayeredMachine, driver: QemuDriver): Promise<void> {
  const records = recordsOf(machine);
  const record = records.get(UID);
  if (record === undefined) {
    throw new Error('The machine has no record');
  }
  const runtime = newRuntime(record, join(machine.directory, 'machines'));
  runtime.state = await driver.inspect(machine.folder);
  const drivers = new Map([['qemu', { driver, accelerators: [] }]]);
  const host = { records, drivers, logger: pino({ level: 'silent' }) } as unknown as PodHost;
  const { promise, resolve } = Promise.withResolvers<void>();
  beginMerge(host, runtime, { deletion: undefined }, resolve);
  await (runtime.merge && promise);
}
