/** The condition under which a host accepts no more VMs, because its disk is nearly full. */
import type { FreeDisk } from './facts.ts';

/**
 * Share of free disk below which there is pressure (a kubelet's threshold for evictions), and a higher share that ends the
 * pressure. The difference prevents frequent changes of the condition.
 */
const PRESSED_BELOW = 0.05;
const FINE_ABOVE = 0.08;
/** Multiple of `minimumFree` that must be free before the pressure ends. */
const FINE_FACTOR = 1.25;

/**
 * Reports whether the host has disk pressure. `minimumFree` is the number of bytes that images leave free, because the disks of
 * machines grow.
 */
export function isDiskPressed({ share, bytes }: FreeDisk, minimumFree: number, wasPressed: boolean): boolean {
  return wasPressed
    ? share < FINE_ABOVE || bytes < minimumFree * FINE_FACTOR
    : share < PRESSED_BELOW || bytes < minimumFree;
}
