/** An agent's driver in a process of its own. It starts a machine from memory or saves one, until it is killed. */
import { pino } from 'pino';
import type { MemoryFiles } from '../../../agent/disks/disk.ts';
import type { CopyOptions, MachineFolder, VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import { QemuDriver } from '../../../agent/drivers/qemu/driver.ts';

interface MachineJob {
  dataDirectory: string;
  folder: MachineFolder;
}

interface StartJob extends MachineJob {
  plan: VmLaunchPlan;
  memory: MemoryFiles;
}

interface SaveJob extends MachineJob {
  copy: Pick<CopyOptions, 'target' | 'memory'>;
}

export type WarmJob = StartJob | SaveJob;

if (import.meta.main) {
  const job = JSON.parse(process.argv[2] ?? '') as WarmJob;
  const { dataDirectory, folder } = job;
  const driver = new QemuDriver({ dataDirectory, logger: pino({ level: 'silent' }) });
  if ('copy' in job) {
    const { signal } = new AbortController();
    await driver.copyDisk(folder, { ...job.copy, signal, onProgress: () => undefined });
  } else {
    await driver.startFromMemory(folder, job.plan, job.memory);
  }
}
