/** A disk of its own for a test, of limited size: a tmpfs, which only root can mount. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Mounts at most `mebibytes` at a folder that is there. @throws Error with what mount says. */
export function mountTmpfs(point: string, mebibytes: number): void {
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${mebibytes}m`, 'berth-test', point], { stdio: 'pipe' });
}

/** Undefined where a disk of its own can be had. */
export function whyNoTmpfs(): string | undefined {
  const point = mkdtempSync(join(tmpdir(), 'berth-tmpfs-probe-'));
  try {
    mountTmpfs(point, 1);
    execFileSync('umount', [point]);
    return undefined;
  } catch (error) {
    return `no file system can be mounted: ${String(error)}`;
  } finally {
    rmdirSync(point);
  }
}
