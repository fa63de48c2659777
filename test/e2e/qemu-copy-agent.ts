/** An agent's driver in a process of its own, that copies a disk and never comes to its end, until it is killed. */
import { readFileSync } from 'node:fs';
import { pino } from 'pino';
import { QemuDriver } from '../../agent/drivers/qemu/driver.ts';

export interface CopyJob {
  dataDirectory: string;
  folder: { uid: string; path: string };
  target: string;
}

/** Written when the process that reads the disk is there; it is held, and outlives this one. */
export const UNDER_WAY = 'under way\n';
/** Short beside the time that reading takes. */
const LOOK_INTERVAL_MILLISECONDS = 1;

function holdReader(): void {
  const timer = setInterval(() => {
    const children = readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').trim();
    if (children === '') return;
    process.kill(Number(children), 'SIGSTOP');
    clearInterval(timer);
    process.stdout.write(UNDER_WAY);
  }, LOOK_INTERVAL_MILLISECONDS);
}

if (import.meta.main) {
  const { dataDirectory, folder, target } = JSON.parse(process.argv[2] ?? '') as CopyJob;
  const driver = new QemuDriver({ dataDirectory, logger: pino({ level: 'silent' }) });
  await driver.copyDisk(folder, {
    target,
    signal: AbortSignal.timeout(60_000),
    onProgress: (percent) => {
      if (percent === 0) holdReader();
    },
  });
}
