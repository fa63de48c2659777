import { describe, expect, it } from 'vitest';
import { startTimeIn } from './process.ts';

/** Returns a line in the format of /proc/PID/stat, for a process whose name imitates other fields. */
function stat(state: string, threads: number): string {
  const before = `4711 (qemu) Z 1 (x) ${state} 1 4711 4711 0 -1 4227084 2941 6539 1 0 2 1 3 2 20 0`;
  return `${before} ${threads} 0 1389051 0 0 18446744073709551615 0 0 0\n`;
}

describe('a process', () => {
  it('is known by its start time', () => {
    expect(startTimeIn(stat('S', 7))).toBe('1389051');
  });

  it('is there until the last of its threads has ended: until then its disk is locked and its ports are taken', () => {
    expect(startTimeIn(stat('Z', 2))).toBe('1389051');
    expect(startTimeIn(stat('Z', 1))).toBeUndefined();
  });
});
