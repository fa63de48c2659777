/** Unmounts disks that tests mount inside a cluster's folder. */
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { promisify } from 'node:util';

const MOUNTS = '/proc/self/mounts';

/** Unmounts the disks that a killed test left mounted below the folder, the innermost first. A mounted folder could not be removed. */
export async function unmountBelow(folder: string): Promise<void> {
  if (!existsSync(MOUNTS)) {
    return;
  }
  const points = readFileSync(MOUNTS, 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
    .filter((point) => point.startsWith(`${folder}/`));
  for (const point of points.toReversed()) {
    await promisify(execFile)('umount', [point]);
  }
}
