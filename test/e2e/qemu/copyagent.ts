/** An agent's driver in a process of its own. It copies a disk and never ends the copy, until it is killed. */
import { readFileSync } from 'node:fs';
import { pino } from 'pino';
import { QemuDriver } from '../../../agent/drivers/qemu/driver.ts';

export interface CopyJob {
  dataDirectory: string;
  folder: { uid: string; path: string };
  target: string;
}

/** Printed when the process that reads the disk is stopped in its middle. That process outlives this one. */
export const UNDER_WAY = 'under way\n';

if (import.meta.main) {
  const { dataDirectory, folder, target } = JSON.parse(process.argv[2] ?? '') as CopyJob;
  const driver = new QemuDriver({ dataDirectory, logger: pino({ level: 'silent' }) });
  await driver.copyDisk(folder, {
    target,
    signal: AbortSignal.timeout(60_000),
    onProgress: (percent) => {
      if (percent === 0) {
        return;
      }
      const reader = readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').trim();
      process.kill(Number(reader), 'SIGSTOP');
      process.stdout.write(UNDER_WAY);
    },
  });
}
