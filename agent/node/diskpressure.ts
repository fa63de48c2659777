/** When a host takes no more VMs for want of room on its disk. */
import type { FreeDisk } from './facts.ts';

/** A kubelet's threshold for evictions, and a higher one that clears the condition, so that it does not flap. */
const PRESSED_BELOW = 0.05;
const FINE_ABOVE = 0.08;
/** The condition clears only when this many times `minimumFree` is free. */
const FINE_FACTOR = 1.25;

/** `minimumFree`: bytes that images leave free, since the disks of machines grow. */
export function isDiskPressed({ share, bytes }: FreeDisk, minimumFree: number, wasPressed: boolean): boolean {
  return wasPressed
    ? share < FINE_ABOVE || bytes < minimumFree * FINE_FACTOR
    : share < PRESSED_BELOW || bytes < minimumFree;
}
