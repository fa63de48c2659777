/** An agent's driver in a process of its own. It starts a machine from memory, whose renewal does not end, until it is killed. */
import { pino } from 'pino';
import type { MemoryFiles } from '../../../agent/disks/disk.ts';
import type { MachineFolder, VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import { QemuDriver } from '../../../agent/drivers/qemu/driver.ts';

export interface WarmJob {
  dataDirectory: string;
  folder: MachineFolder;
  plan: VmLaunchPlan;
  memory: MemoryFiles;
}

if (import.meta.main) {
  const { dataDirectory, folder, plan, memory } = JSON.parse(process.argv[2] ?? '') as WarmJob;
  const driver = new QemuDriver({ dataDirectory, logger: pino({ level: 'silent' }) });
  await driver.startFromMemory(folder, plan, memory);
}
