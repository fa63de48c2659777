/** What a sleeping guest of the stand-in for `tart` has on its disk. */
import { closeSync, openSync, readSync, writeSync } from 'node:fs';

/** Space on the disk for what the guest has there. */
const GUEST_BYTES = 4096;

/** What the sleeping guest has on its disk: the number of its boots, the id of the last one, and a note of the test. */
export interface Guest {
  boots: number;
  boot_id: string;
  marker: string;
}

/** Reads what the guest has on its disk. An empty disk has never booted. */
export function readGuest(disk: string): Guest {
  const bytes = Buffer.alloc(GUEST_BYTES);
  const file = openSync(disk, 'r');
  readSync(file, bytes, 0, bytes.length, 0);
  closeSync(file);
  const text = bytes.toString('utf8').replaceAll('\0', '');
  return text === '' ? { boots: 0, boot_id: '', marker: '' } : (JSON.parse(text) as Guest);
}

/** Writes to the disk of a guest, whose size stays. */
export function writeGuest(disk: string, guest: Guest): void {
  const bytes = Buffer.alloc(GUEST_BYTES);
  bytes.write(JSON.stringify(guest));
  const file = openSync(disk, 'r+');
  writeSync(file, bytes, 0, bytes.length, 0);
  closeSync(file);
}
