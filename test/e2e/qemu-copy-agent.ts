/** An agent's driver in a process of its own, that copies a disk until it is killed. */
import { pino } from 'pino';
import { QemuDriver } from '../../agent/drivers/qemu/driver.ts';

export interface CopyJob {
  dataDirectory: string;
  folder: { uid: string; path: string };
  target: string;
}

/** Written when the moment that the copy shows is over. */
export const UNDER_WAY = 'under way\n';

if (import.meta.main) {
  const { dataDirectory, folder, target } = JSON.parse(process.argv[2] ?? '') as CopyJob;
  const driver = new QemuDriver({ dataDirectory, logger: pino({ level: 'silent' }) });
  await driver.copyDisk(folder, {
    target,
    signal: AbortSignal.timeout(60_000),
    onProgress: (percent) => {
      if (percent === 0) process.stdout.write(UNDER_WAY);
    },
  });
}
