/** Reservations of disk space for images, and the size of the steps in which they grow. */
import { folderBytes } from '../../disks/diskio.ts';

/**
 * Smallest and largest number of bytes that are reserved ahead of a fetch. Between them, a fetch has as many bytes ahead as have arrived. So
 * a source that sends little takes little from others, and a fast source seldom waits for a removal.
 */
const LEAST_AHEAD_BYTES = 1024 ** 2;
const MOST_AHEAD_BYTES = 64 * 1024 ** 2;

/** Disk space that work needs in a folder. `bytes` is the total number of bytes that the work announces, as far as known. */
export interface Need {
  readonly folder: string;
  /** Namespace for which the work is done. */
  readonly tenant: string;
  readonly bytes: number;
}

/** Reservation of disk space for work in a folder. */
export interface Claim {
  readonly folder: string;
  /** Namespace for which the work is done. It is undefined if the work reserves no space of its own. */
  readonly tenant: string | undefined;
  /** Ends the work with this reason. */
  readonly end: (reason: Error) => void;
  /** Total number of bytes that the work needs, as far as somebody has announced it. */
  announced: number;
  /** Number of bytes for which space is reserved, including the bytes that the work has already written. */
  reserved: number;
}

/** Returns for how many bytes a claim should have space when its work has written `written` bytes. */
export function stepOf({ announced }: Claim, written: number): number {
  const ahead = Math.min(MOST_AHEAD_BYTES, Math.max(LEAST_AHEAD_BYTES, written));
  return Math.min(announced, written + ahead);
}

export async function remaining({ folder, reserved }: Claim): Promise<number> {
  return Math.max(0, reserved - (await folderBytes(folder)));
}

export async function totalRemaining(claims: readonly Claim[]): Promise<number> {
  return sum(await Promise.all(claims.map(remaining)));
}

export function sizeOf({ sizeBytes }: { sizeBytes: number }): number {
  return sizeBytes;
}

export function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}
