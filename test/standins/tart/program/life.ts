/** Tells whether a process of the stand-in for `tart` lives. */
import { readFileSync } from 'node:fs';
import { parseStartTime } from '../../../../agent/processes/process.ts';

/** Returns false also for a zombie, because an ended process holds no lock on its machine. Its parent can reap it much later. */
export function isAlive(pid: number): boolean {
  try {
    return parseStartTime(readFileSync(`/proc/${pid}/stat`, 'utf8')) !== undefined;
  } catch {
    return false;
  }
}
