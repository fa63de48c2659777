/** An agent's driver in a process of its own. It takes snapshots of a running machine, until it is killed. */
import { pino } from 'pino';
import type { MachineFolder } from '../../../agent/drivers/driver.ts';
import { QemuDriver } from '../../../agent/drivers/qemu/driver.ts';

export interface SnapshotJob {
  dataDirectory: string;
  folder: MachineFolder;
  uids: readonly string[];
  memory: boolean;
}

/** Printed before each snapshot. */
export const BEGINS = 'begins\n';

if (import.meta.main) {
  const { dataDirectory, folder, uids, memory } = JSON.parse(process.argv[2] ?? '') as SnapshotJob;
  const driver = new QemuDriver({ dataDirectory, logger: pino({ level: 'silent' }) });
  for (const uid of uids) {
    process.stdout.write(BEGINS);
    await driver.takeSnapshot(folder, uid, new AbortController().signal, { memory });
  }
}
