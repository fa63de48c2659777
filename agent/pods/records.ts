/** Keeps the records of all machines of this host, in memory and on disk: `<data directory>/pods/UID.json`. */
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import * as z from 'zod';
import { machinePortSchema } from '../../api/v1alpha1/machine.ts';
import { writeWholeSync } from '../../base/files.ts';
import { describeFault } from '../drivers/statefile.ts';
import type { MachineRecord } from './machine.ts';

/**
 * Version of the format of record files. If a file has a higher version, a newer release of the agent wrote it. The agent then treats the
 * file as unreadable.
 */
const VERSION = 1;

/**
 * An unreadable record. The agent must not ignore such a record, because the machine might run, and its disk might be the only copy of a
 * user's data.
 */
export interface DamagedRecord {
  uid: string;
  path: string;
  /** Message for users about the fault of the file. */
  message: string;
}

/**
 * Schema of a record's fields. The content of `machine`, `emulator` and `base` is not
 * validated again, because the agent accepted it when it wrote the record. If a rule has become stricter since then, the old record must
 * stay readable, because a machine with an unreadable record fails.
 */
const recordSchema = z.looseObject({
  version: z.literal(VERSION),
  uid: z.string().min(1),
  podUid: z.string().min(1).optional(),
  key: z.string().min(1),
  driver: z.string().min(1),
  claim: z.object({
    slots: z.number(),
    macosGuests: z.number().optional(),
    cpuMillis: z.number(),
    memoryBytes: z.number(),
    diskBytes: z.number(),
    ports: z.array(z.object({ hostPort: z.number().int(), protocol: z.enum(['TCP', 'UDP', 'SCTP']) })),
  }),
  automaticPorts: z.array(machinePortSchema),
  machine: z.looseObject({}).optional(),
  emulator: z.looseObject({}).optional(),
  base: z.looseObject({ path: z.string() }).optional(),
  created: z.boolean(),
  running: z.boolean(),
  everRan: z.boolean(),
  acknowledged: z.boolean(),
  released: z.boolean(),
});

/** Returns the uid of the Pod that has the machine. A machine can outlive its Pod, and then gets another Pod. */
export function podUidOf({ uid, podUid }: Readonly<MachineRecord>): string {
  return podUid ?? uid;
}

export class RecordStore {
  /**
   * Files that were unreadable at the start of the agent. {@link replaceDamaged} replaces these files. Until then, the files stay
   * unchanged.
   */
  readonly damaged: readonly DamagedRecord[];
  readonly #directory: string;
  readonly #records = new Map<string, MachineRecord>();

  /**
   * Creates the folder if it does not exist, and reads the records in it. Unreadable files are in {@link damaged}.
   *
   * @throws Error when the folder cannot be created or listed.
   */
  constructor(directory: string) {
    this.#directory = directory;
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    const damaged: DamagedRecord[] = [];
    for (const name of readdirSync(directory)) {
      if (!name.endsWith('.json')) {
        continue;
      }
      const uid = name.slice(0, -'.json'.length);
      const path = this.#path(uid);
      try {
        this.#records.set(uid, readRecord(path, uid));
      } catch (error) {
        damaged.push({ uid, path, message: describeFault(error) });
      }
    }
    this.damaged = damaged;
  }

  get(uid: string): MachineRecord | undefined {
    return this.#records.get(uid);
  }

  /** Returns the record of the machine that the Pod with this uid has. */
  ofPod(podUid: string): MachineRecord | undefined {
    return this.list().find((record) => podUidOf(record) === podUid);
  }

  /**
   * Returns the record of the machine of the VM with this uid. If this host has several such records, the function prefers the record of a
   * running machine.
   */
  ofVM(vmUid: string): MachineRecord | undefined {
    const found = this.list().filter(({ machine }) => machine?.vm.uid === vmUid);
    return found.find(({ running }) => running) ?? found[0];
  }

  list(): MachineRecord[] {
    return [...this.#records.values()];
  }

  ofKey(key: string): MachineRecord[] {
    return this.list().filter((record) => record.key === key);
  }

  /** Writes the record to its file, and returns only after the file is synced, because later steps rely on the record. */
  save(record: MachineRecord): void {
    this.#write(record);
    this.#records.set(record.uid, record);
  }

  /**
   * Changes a record, in memory and on disk. @throws Error when the file cannot be written. The record then stays as it was, so that no
   * step relies on a change that a restart of the agent would lose.
   */
  update(record: MachineRecord, change: Partial<MachineRecord>): void {
    this.#write({ ...record, ...change });
    Object.assign(record, change);
    this.#records.set(record.uid, record);
  }

  /**
   * Saves a record in place of a damaged record. A copy of the damaged file stays until the machine is removed, so that people can examine
   * it.
   */
  replaceDamaged(record: MachineRecord): void {
    const path = this.#path(record.uid);
    copyFileSync(path, damagedPath(path));
    this.save(record);
  }

  remove(uid: string): void {
    const path = this.#path(uid);
    this.#records.delete(uid);
    rmSync(path, { force: true });
    rmSync(damagedPath(path), { force: true });
  }

  #write(record: MachineRecord): void {
    writeWholeSync(this.#path(record.uid), JSON.stringify({ version: VERSION, ...record }));
  }

  #path(uid: string): string {
    return join(this.#directory, `${uid}.json`);
  }
}

function damagedPath(path: string): string {
  return `${path}.damaged`;
}

function readRecord(path: string, uid: string): MachineRecord {
  const { version: _, ...record } = recordSchema.parse(JSON.parse(readFileSync(path, 'utf8')));
  if (record.uid !== uid) {
    throw new Error(`the file contains the record of another machine, ${record.uid}`);
  }
  return record as unknown as MachineRecord;
}
