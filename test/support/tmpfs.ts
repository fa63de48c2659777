/** A small disk for a test: a tmpfs of limited size, which only root can mount. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Mounts a tmpfs of at most `mebibytes` at an existing folder. @throws Error with the message of mount, when mount fails. */
export function mountTmpfs(point: string, mebibytes: number): void {
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${mebibytes}m`, 'berth-test', point], { stdio: 'pipe' });
}

/** Returns the reason why this machine cannot mount a tmpfs. The result is undefined if it can. */
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
