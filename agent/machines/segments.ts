/**
 * What a machine writes, as the log writer keeps it: files `NAME.POSITION.log` in the machine's folder. POSITION says how many
 * bytes came before the file's first byte. So a reader knows where to go on, and how much it has missed.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { isMissing } from '../../base/errors.ts';

/** The guest's serial console, over all its starts; and what the hypervisor says, of its last start. */
export type LogName = 'serial' | 'hypervisor';

/** Two files of one log are kept: the current one and the one before. Together they are as large as the store of a console. */
export const SEGMENT_BYTES = 4 * 1024 * 1024;

export interface Segment {
  /** The position of the first byte. */
  start: number;
  path: string;
}

const NAME = /^(serial|hypervisor)\.(\d{1,15})\.log$/;

/** A file's name within the machine's folder. */
export function segmentName(log: LogName, start: number): string {
  return `${log}.${start}.log`;
}

/** The files of one log, the oldest first; none where the folder or the log is missing. */
export function listSegments(folder: string, log: LogName): Segment[] {
  return namesIn(folder)
    .flatMap((name) => {
      const [, of, start] = NAME.exec(name) ?? [];
      return of === log ? [{ start: Number(start), path: join(folder, name) }] : [];
    })
    .sort((one, other) => one.start - other.start);
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    if (isMissing(error)) {
      return [];
    }
    throw error;
  }
}
