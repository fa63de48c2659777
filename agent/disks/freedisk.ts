/** Free space on the disk of this host, and the rule for disk pressure. With disk pressure, a host gets no new VMs. */
import { statfs } from 'node:fs/promises';

/**
 * Two shares of free disk space. Disk pressure begins below the first share, which is a kubelet's threshold. Disk pressure ends above the
 * second share. The difference prevents frequent changes.
 */
const PRESSED_BELOW = 0.05;
const FINE_ABOVE = 0.08;
/** Multiple of `minimumFree` that must be free before disk pressure ends. */
const FINE_FACTOR = 1.25;

/** Free space on a file system. */
export interface FreeDisk {
  /** Share of the disk that is free, from 0 to 1. */
  share: number;
  bytes: number;
}

/** Returns the free space on the file system of a folder. */
export async function freeDisk(folder: string): Promise<FreeDisk> {
  const { bavail, blocks, bsize } = await statfs(folder);
  return { share: blocks === 0 ? 1 : bavail / blocks, bytes: bavail * bsize };
}

/** Reports whether the host has disk pressure. `minimumFree` is the number of bytes that images leave free for growing disks. */
export function isDiskPressed({ share, bytes }: FreeDisk, minimumFree: number, wasPressed: boolean): boolean {
  return wasPressed
    ? share < FINE_ABOVE || bytes < minimumFree * FINE_FACTOR
    : share < PRESSED_BELOW || bytes < minimumFree;
}
